"""Distillation of drafter networks from a target, on sequences that the target itself generated.

    outputs = generate_outputs(method, prompts)                                 # of the target, for `Examples`
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

SAVE_EVERY = 60  # seconds between checkpoints, more where saving would take over a twentieth of the time
EVAL_EVERY = 50  # training steps between evaluations
STATE_FILE = "training.safetensors"  # weights, optimiser moments and progress, to resume from
# decoders with image inputs: the text-only architecture with the same layers and plain positions
TEXT_MODEL_TYPES = {
    "qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe",
}  # fmt: skip
IMAGE_ROPE_FIELDS = ("mrope_section", "mrope_interleaved")  # rotary fields for image positions


def generate_outputs(method: Method, prompts: list[PromptInputs]) -> list[Tensor]:
    """Return the token ids that the target generates for every prompt, `[L_i]` each, decoded with `method`.

    A method with the guarantee "identical" or "exact" only changes the time that this takes.
    """
    batch = start_batch(method, prompts)
    for _ in decode(method, batch):
        pass
    batch.raise_errors()
    return batch.outputs()


def target_and_draft_log_probs(
    target: CausalTarget, student: PreTrainedModel, examples: Examples
) -> tuple[Tensor, Tensor]:
    """Return log probabilities of target and student at the M positions in the loss mask.

    Args:
        target (CausalTarget): Target; it gets no gradient.
        student (PreTrainedModel): Independent draft model; it sees the text without image placeholders.
        examples (Examples): Sequences with their loss mask.

    Returns:
        tuple[Tensor, Tensor]: log p of the target and log q of the student, [M, V] each.
    """
    with torch.no_grad():
        hidden = run_target(target, examples)[0][examples.loss_mask]
        p = target.compute_logits(hidden).float().log_softmax(-1)
    text = examples.text_only()
    with mixed_precision(text.ids.device):
        hidden = student.base_model(input_ids=text.ids).last_hidden_state[text.loss_mask]
        q = student.get_output_embeddings()(hidden)
    return p, q.float().log_softmax(-1)


def kl_loss(target: CausalTarget, student: PreTrainedModel, examples: Examples) -> Tensor:
    """Return the mean KL(target || student) in nats over the positions in the loss mask, a scalar."""
    p, q = target_and_draft_log_probs(target, student, examples)
    return F.kl_div(q, p, log_target=True, reduction="batchmean")


def distil(
    objective: Callable[[Any, Examples], Tensor], student: Any, source: Iterator[Examples], *, minutes: float,
    folder: Path, rate: float = 1.5e-3, evaluate: Callable[[], float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train a drafter for `minutes` of wall time in all, resuming from `folder` if an earlier run was stopped there.

    The learning rate warms up over 50 steps, while a cosine over the wall time lowers it to 2 % of its peak.
    Checkpoints are written atomically, also on Ctrl-C after the first step. At least one step is made, however little
    time there is.

    Args:
        objective (Callable[[Any, Examples], Tensor]): Scalar loss of (student, examples), such as a mean KL divergence
            with natural logarithms. Its scale matters, since gradients are clipped to a norm of 1.
        student (Any): Drafter network to train.
        source (Iterator[Examples]): Batches of examples, endless.
        minutes (float): Wall time, including earlier runs that were stopped.
        folder (Path): Folder for checkpoints and the trained weights.
        rate (float): Peak learning rate.
        evaluate (Callable[[], float] | None): Returns the loss on held-out examples; it is called every EVAL_EVERY
            steps and once more after the last step. The weights with the lowest loss are kept, since few examples are
            soon memorised; None keeps the last ones.

    Returns:
        dict[str, Any]: `seconds`, `step`, the loss `curve` and, if evaluated, the `best` loss.
    """
    folder.mkdir(parents=True, exist_ok=True)
    optimiser = torch.optim.AdamW(student.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    progress, best_weights = resume(folder, student, optimiser)  # of a new run if there is no checkpoint
    budget, earlier_seconds, started_at = minutes * 60, progress["seconds"], time.monotonic()
    saved_at, save_seconds = started_at, 0.0
    with tqdm(total=round(budget), initial=min(round(earlier_seconds), round(budget)), unit="s", desc="distil") as bar:
        try:
            while (elapsed := earlier_seconds + time.monotonic() - started_at) < budget or not progress["step"]:
                factor = min(1.0, (progress["step"] + 1) / 50)  # linear warm-up
                time_fraction = elapsed / budget if elapsed < budget else 1.0  # `budget` may be 0
                factor *= 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * time_fraction))  # from 1 down to 0.02
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
                        progress["best"], best_weights = held_out, copy_weights(student)
                bar.set_postfix(loss=f"{loss.item():.4f}", refresh=False)
                bar.update(min(round(elapsed), round(budget)) - round(bar.n))
                # every SAVE_EVERY seconds, or rarer where saving is slow, so that it takes at most 1/20 of the time
                if time.monotonic() - saved_at > max(SAVE_EVERY, 20 * save_seconds):
                    save_started_at = time.monotonic()
                    save_checkpoint(folder, student, optimiser, progress, best_weights)
                    saved_at = time.monotonic()
                    save_seconds = saved_at - save_started_at
        except KeyboardInterrupt:
            if progress["step"]:
                save_checkpoint(folder, student, optimiser, progress, best_weights)
            raise
    progress["seconds"] = max(budget, earlier_seconds)  # the whole budget counts as used: a later call adds no step
    if best_weights and evaluate is not None:
        # steps since the last evaluation may have lowered the loss further, so the last weights compete with the best
        if (last_loss := evaluate()) > progress["best"]:
            # not strict: `best_weights` holds parameters alone, once each, and no buffers or tied copies
            student.load_state_dict(best_weights, strict=False)
        else:
            progress["best"], best_weights = last_loss, copy_weights(student)
    save_checkpoint(folder, student, optimiser, progress, best_weights)
    return progress


def copy_weights(student: Any) -> dict[str, Tensor]:
    """Return copies of all parameters of `student`, by name."""
    return {name: weight.detach().clone() for name, weight in student.named_parameters()}


def save_checkpoint(
    folder: Path, student: Any, optimiser: torch.optim.Optimizer, progress: dict[str, Any],
    best_weights: dict[str, Tensor],
) -> None:  # fmt: skip
    """Write the trained weights in bf16 for inference, and STATE_FILE with all that `resume` needs.

    Args:
        folder (Path): Existing folder to write to.
        student (Any): Network in training.
        optimiser (torch.optim.Optimizer): Its optimiser, whose moments are stored.
        progress (dict[str, Any]): Seconds, step and loss curve so far.
        best_weights (dict[str, Tensor]): Weights with the lowest held-out loss so far; {} if there was no evaluation.
    """
    # keys of STATE_FILE: "<parameter index>.<moment>", "master.<name>" for weights as trained (not bf16), "best.<name>"
    moments = {
        f"{index}.{key}": value.detach().clone()
        for index, state in optimiser.state_dict()["state"].items() for key, value in state.items()
    }  # fmt: skip
    masters = {f"master.{name}": weight for name, weight in copy_weights(student).items()}
    masters |= {f"best.{name}": weight for name, weight in best_weights.items()}
    with atomic_dir(folder) as temporary:
        save_file(moments | masters, temporary / STATE_FILE, {"progress": json.dumps(progress)})
        student.save_pretrained(temporary, state_dict=export_state_dict(student))


def resume(folder: Path, student: Any, optimiser: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Restore weights of `student` and moments of `optimiser` from a checkpoint of `save_checkpoint`, if there is one.

    The checkpoint's keys are "master.<name>" for weights, "best.<name>" for those with the lowest held-out loss so far,
    and "<parameter index>.<moment>" for the optimiser.

    Returns:
        tuple[dict[str, Any], dict[str, Tensor]]: progress, and the weights with the lowest held-out loss so far; both
            are those of a new run if there is no checkpoint.

    Raises:
        InvalidArgument: The checkpoint is of a network with other parameters.
    """
    if not (folder / STATE_FILE).exists():
        return {"seconds": 0.0, "step": 0, "curve": []}, {}
    moments: dict[int, dict[str, Tensor]] = {}  # optimiser state by index of the parameter
    best_weights: dict[str, Tensor] = {}
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
                best_weights[name] = stored.get_tensor(key).to(masters[name].device)
            else:
                moments.setdefault(int(prefix), {})[name] = stored.get_tensor(key).clone()
        progress: dict[str, Any] = json.loads(stored.metadata()["progress"])
    # learning rate and other settings (`param_groups`) are those of this run, not of the checkpoint
    optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
    return progress, best_weights


def build_truncated_student(target: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Return a draft model to train: the target's embeddings, norm and LM head, and `layers` evenly spaced layers.

    It is in fp32 and takes no images, also if the target does.

    Raises:
        UnsupportedMethod: The architecture of the target's layers cannot be a language model of its own.
    """
    target_config = target.config.get_text_config()
    depth = target_config.num_hidden_layers
    # from the first to the last layer of the target; the first alone if `layers` is 1
    layer_indices = [round(index * (depth - 1) / max(1, layers - 1)) for index in range(layers)]
    changes: dict[str, Any] = {"num_hidden_layers": layers}
    if getattr(target_config, "layer_types", None):
        changes["layer_types"] = [target_config.layer_types[index] for index in layer_indices]
    student, decoder, weights = build_text_decoder(target_config, changes), target.get_decoder(), {}
    for name, tensor in decoder.state_dict().items():
        parts = name.split(".")
        if parts[0] == "layers":  # "layers.<index>.…": skip layers that are left out, renumber the others
            if int(parts[1]) not in layer_indices:
                continue
            parts[1] = str(layer_indices.index(int(parts[1])))
        # weights that were packed for inference are left on the meta device; their values are unpacked here
        weights[".".join(parts)] = dense_weight(parameter_owner(decoder, name)) if tensor.is_meta else tensor
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
    """Build an untrained fp32 causal LM of the architecture of a target's text decoder, without image modules.

    Args:
        config (PretrainedConfig): Text configuration of the target.
        changes (dict[str, Any]): Fields that differ from it.

    Raises:
        UnsupportedMethod: transformers has no stand-alone decoder of this architecture.
    """
    config_class = (
        CONFIG_MAPPING[TEXT_MODEL_TYPES[config.model_type]] if config.model_type in TEXT_MODEL_TYPES else type(config)
    )
    # these two name the target's architecture, which may have image inputs
    settings = {name: value for name, value in config.to_dict().items() if name not in ("model_type", "architectures")}
    if isinstance(rope := settings.get("rope_parameters"), dict):
        settings["rope_parameters"] = {name: value for name, value in rope.items() if name not in IMAGE_ROPE_FIELDS}
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config_class(**(settings | changes)))
    except ValueError as error:  # transformers has no such stand-alone decoder
        raise unsupported_model_error(config) from error
    return model.float()


def unsupported_model_error(config: PretrainedConfig) -> UnsupportedMethod:
    """Return the error for a configuration whose layers cannot be a language model of their own."""
    return UnsupportedMethod(
        f"layers of the kind {config.model_type!r} make no language model of their own here; train one of another "
        "kind, such as eagle."
    )


def parameter_owner(module: nn.Module, name: str) -> nn.Module:
    """Return the submodule of `module` that holds the parameter or buffer `name`, a key of the state dict."""
    return module.get_submodule(name.rpartition(".")[0])
