"""Distillation of drafter networks from a target, on sequences that the target itself generated.

    examples = collect(method, prompts)                                         # outputs of the target
    distil(partial(kl_loss, target), student, source, minutes=10, folder=out)   # resumable

On-policy labels are the largest lever there is (Zhou et al. 2024, DistillSpec, arXiv 2310.08461, section 4).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from polydraft.core.checks.system_errors import system_error
from polydraft.core.decode import Method, decode, start_batch
from polydraft.core.distillation.examples import Examples, run_target
from polydraft.core.distillation.export import atomic_dir, export_state_dict
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.folders.readers import convert_load_errors
from polydraft.core.folders.weight_files import open_tensors
from polydraft.core.model.linear import dense_weight
from polydraft.core.model.precision import mixed_precision
from polydraft.core.target.causal import CausalTarget, PromptInputs

SAVE_EVERY = 60  # seconds; saving takes at most a twentieth of the time
EVAL_EVERY = 50  # steps
STATE_FILE = "training.safetensors"  # progress of a run
# decoders with image inputs: the text-only architecture with the same layers and plain positions
TEXT_MODEL_TYPES = {
    "qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe",
}  # fmt: skip
IMAGE_ROPE_FIELDS = ("mrope_section", "mrope_interleaved")  # rotary fields for image positions


def collect(method: Method, prompts: list[PromptInputs]) -> list[Tensor]:
    """Return the generated ids of every prompt, generated with `method` (an identical one costs nothing but time)."""
    batch = start_batch(method, prompts)
    for _ in decode(method, batch):
        pass
    batch.raise_errors()
    return batch.outputs()


def target_and_draft_log_probs(
    target: CausalTarget, student: PreTrainedModel, examples: Examples
) -> tuple[Tensor, Tensor]:
    """Return log p and log q at the positions that count, `[M, V]` each; no gradient reaches the target."""
    with torch.no_grad():
        hidden = run_target(target, examples)[0][examples.loss_mask]
        p = target.compute_logits(hidden).float().log_softmax(-1)
    text = examples.text_only()
    with mixed_precision(text.ids.device):
        hidden = student.base_model(input_ids=text.ids).last_hidden_state[text.loss_mask]
        q = student.get_output_embeddings()(hidden)
    return p, q.float().log_softmax(-1)


def kl_loss(target: CausalTarget, student: PreTrainedModel, examples: Examples) -> Tensor:
    """Return the mean KL(target || student) in nats over the positions that count."""
    p, q = target_and_draft_log_probs(target, student, examples)
    return F.kl_div(q, p, log_target=True, reduction="batchmean")


def distil(
    objective: Callable[[Any, Examples], Tensor], student: Any, source: Iterator[Examples], *, minutes: float,
    folder: Path, rate: float = 1.5e-3, evaluate: Callable[[], float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train `student` for `minutes` of wall time in all, resuming from `folder` if a run was stopped there.

    Checkpoints are safetensors and JSON, each complete or not there; Ctrl-C leaves one if a step was made. The learning
    rate follows the clock. However little time there is, a step is made.

    Args:
        objective (Callable[[Any, Examples], Tensor]): Loss of (student, examples), in nats or close to it.
        student (Any): Network to train.
        source (Iterator[Examples]): Batches of examples.
        minutes (float): Wall time, including earlier runs.
        folder (Path): Folder for checkpoints and the trained weights.
        rate (float): Peak learning rate.
        evaluate (Callable[[], float] | None): Held-out loss. At the end it decides whether the last weights are kept or
            the best ones evaluated before, since a few examples are soon memorised.

    Returns:
        dict[str, Any]: `seconds`, `step`, the loss `curve` and, if evaluated, the `best` loss.
    """
    folder.mkdir(parents=True, exist_ok=True)
    optimiser = torch.optim.AdamW(student.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    progress, best = resume(folder, student, optimiser)
    budget, before, started, saved, cost = minutes * 60, progress["seconds"], time.monotonic(), time.monotonic(), 0.0
    with tqdm(total=round(budget), initial=min(round(before), round(budget)), unit="s", desc="distil") as bar:
        try:
            while (elapsed := before + time.monotonic() - started) < budget or not progress["step"]:
                factor = min(1.0, (progress["step"] + 1) / 50)
                share = elapsed / budget if elapsed < budget else 1.0
                factor *= 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share))
                optimiser.param_groups[0]["lr"] = rate * factor
                loss = objective(student, next(source))
                optimiser.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
                optimiser.step()
                progress |= {"seconds": elapsed, "step": progress["step"] + 1}
                if progress["step"] % EVAL_EVERY == 0:
                    held_out = float("nan") if evaluate is None else evaluate()
                    point = {"seconds": round(elapsed), "step": progress["step"]}
                    progress["curve"].append(point | {"train": loss.item(), "held_out": held_out})
                    if held_out < progress.get("best", math.inf):
                        progress["best"], best = held_out, copy_weights(student)
                bar.set_postfix(loss=f"{loss.item():.4f}", refresh=False)
                bar.update(min(round(elapsed), round(budget)) - round(bar.n))
                if time.monotonic() - saved > max(SAVE_EVERY, 20 * cost):
                    saved = time.monotonic()
                    save_checkpoint(folder, student, optimiser, progress, best)
                    saved, cost = time.monotonic(), time.monotonic() - saved
        except KeyboardInterrupt:
            if progress["step"]:
                save_checkpoint(folder, student, optimiser, progress, best)
            raise
    progress["seconds"] = max(budget, before)
    if best and evaluate is not None:
        if (last := evaluate()) > progress["best"]:
            student.load_state_dict(best, strict=False)
        else:
            progress["best"], best = last, copy_weights(student)
    save_checkpoint(folder, student, optimiser, progress, best)
    return progress


def copy_weights(student: Any) -> dict[str, Tensor]:
    """Return copies of all parameters."""
    return {name: weight.detach().clone() for name, weight in student.named_parameters()}


def save_checkpoint(
    folder: Path, student: Any, optimiser: torch.optim.Optimizer, progress: dict[str, Any], best: dict[str, Tensor]
) -> None:
    """Write weights (bf16, for use), and in one file master weights, the best ones, moments and progress."""
    moments = {
        f"{index}.{key}": value.detach().clone()
        for index, state in optimiser.state_dict()["state"].items() for key, value in state.items()
    }  # fmt: skip
    masters = {f"master.{name}": weight for name, weight in copy_weights(student).items()}
    masters |= {f"best.{name}": weight for name, weight in best.items()}
    with atomic_dir(folder) as temporary:
        save_file(moments | masters, temporary / STATE_FILE, {"progress": json.dumps(progress)})
        student.save_pretrained(temporary, state_dict=export_state_dict(student))


def resume(folder: Path, student: Any, optimiser: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Restore what `save_checkpoint` wrote and return progress and best weights; a fresh start if there is nothing."""
    if not (folder / STATE_FILE).exists():
        return {"seconds": 0.0, "step": 0, "curve": []}, {}
    state: dict[int, dict[str, Tensor]] = {}
    best: dict[str, Tensor] = {}
    masters = dict(student.named_parameters())
    with convert_load_errors("run", folder), open_tensors(folder / STATE_FILE) as stored:
        shapes = {key: stored.get_slice(key).get_shape() for key in stored.keys()}  # noqa: SIM118 - not a mapping
        if any(shapes.get(f"master.{name}") != list(weight.shape) for name, weight in masters.items()):
            raise InvalidArgument(f"{folder} holds a run that trained something else; give another folder.")
        for key in shapes:
            prefix, _, name = key.partition(".")
            if prefix == "master":
                with torch.no_grad():
                    masters[name].copy_(stored.get_tensor(key))
            elif prefix == "best":
                best[name] = stored.get_tensor(key).to(masters[name].device)
            else:
                state.setdefault(int(prefix), {})[name] = stored.get_tensor(key).clone()
        progress: dict[str, Any] = json.loads(stored.metadata()["progress"])
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return progress, best


def truncated_copy(target: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Return a text-only student with the target's embeddings, head, norm and `layers` evenly spaced layers."""
    target_config = target.config.get_text_config()
    depth = target_config.num_hidden_layers
    layer_indices = [round(index * (depth - 1) / max(1, layers - 1)) for index in range(layers)]
    changes: dict[str, Any] = {"num_hidden_layers": layers}
    if getattr(target_config, "layer_types", None):
        changes["layer_types"] = [target_config.layer_types[index] for index in layer_indices]
    student, decoder, weights = build_text_decoder(target_config, changes), target.get_decoder(), {}
    for name, tensor in decoder.state_dict().items():
        parts = name.split(".")
        if parts[0] == "layers":
            if int(parts[1]) not in layer_indices:
                continue
            parts[1] = str(layer_indices.index(int(parts[1])))
        # packed weights exist nowhere else
        weights[".".join(parts)] = dense_weight(find_owner(decoder, name)) if tensor.is_meta else tensor
    try:
        student.get_decoder().load_state_dict(weights)
    except RuntimeError as error:
        raise system_error(error, "a student cannot be made of the target's layers") or unsupported_model_error(
            target_config
        ) from error
    with torch.no_grad():
        student.get_output_embeddings().weight.copy_(dense_weight(target.get_output_embeddings()))
    return student


def build_text_decoder(config: PretrainedConfig, changes: dict[str, Any]) -> PreTrainedModel:
    """Build an fp32 causal LM with the layers of `config` and `changes`, without its image modules."""
    config_class = (
        CONFIG_MAPPING[TEXT_MODEL_TYPES[config.model_type]] if config.model_type in TEXT_MODEL_TYPES else type(config)
    )
    settings = {name: value for name, value in config.to_dict().items() if name not in ("model_type", "architectures")}
    if isinstance(rope := settings.get("rope_parameters"), dict):
        settings["rope_parameters"] = {name: value for name, value in rope.items() if name not in IMAGE_ROPE_FIELDS}
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config_class(**(settings | changes)))
    except ValueError as error:  # transformers has no such stand-alone decoder
        raise unsupported_model_error(config) from error
    return model.float()


def unsupported_model_error(config: PretrainedConfig) -> UnsupportedMethod:
    """Return the error for layers of which no language model can be built."""
    return UnsupportedMethod(
        f"layers of the kind {config.model_type!r} make no language model of their own here; train one of another "
        "kind, such as eagle."
    )


def find_owner(module: nn.Module, name: str) -> nn.Module:
    """Return the submodule of `module` whose weight has this name."""
    return module.get_submodule(name.rpartition(".")[0])
