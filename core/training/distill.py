"""Distil a drafter network from a target, on sequences the target itself wrote.

    examples = collect(method, prompts)                                        # what the target says
    distil(partial(divergence, target), student, source, minutes=10, folder=out)   # resumable

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

from polydraft.core.decode import Method, decode, start
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.folders.door import reading
from polydraft.core.folders.weight_files import open_tensors
from polydraft.core.model.kernels import weight_of
from polydraft.core.model.precision import mixed
from polydraft.core.system_errors import system_error
from polydraft.core.target import CausalTarget, Prompt
from polydraft.core.training.examples import Examples, read
from polydraft.core.training.shipping import aside, shipped

SAVE_EVERY = 60  # seconds, but saving takes a twentieth of the time at most
JUDGE_EVERY = 50  # steps
STATE = "training.safetensors"  # how far a run is
TEXT_ONLY = {  # decoders that see pictures: the plain one with the same layers, where rotary coordinates are slots
    "qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe",
}  # fmt: skip
GRIDS = ("mrope_section", "mrope_interleaved")  # rotary settings of pictures


def collect(method: Method, prompts: list[Prompt]) -> list[Tensor]:
    """Generated ids of every prompt, drawn with `method` (an identical one costs nothing but time)."""
    batch = start(method, prompts)
    for _ in decode(method, batch):
        pass
    batch.raise_errors()
    return batch.outputs()


def laws(target: CausalTarget, student: PreTrainedModel, examples: Examples) -> tuple[Tensor, Tensor]:
    """Log p and log q at the judged positions, `[M, V]` each; no gradient reaches the target."""
    with torch.no_grad():
        hidden = read(target, examples)[0][examples.judged]
        p = target.head(hidden).float().log_softmax(-1)
    text = examples.text()
    with mixed(text.ids.device):
        hidden = student.base_model(input_ids=text.ids).last_hidden_state[text.judged]
        q = student.get_output_embeddings()(hidden)
    return p, q.float().log_softmax(-1)


def divergence(target: CausalTarget, student: PreTrainedModel, examples: Examples) -> Tensor:
    """Mean KL(target || student) in nats over the judged positions."""
    p, q = laws(target, student, examples)
    return F.kl_div(q, p, log_target=True, reduction="batchmean")


def distil(
    objective: Callable[[Any, Examples], Tensor], student: Any, source: Iterator[Examples], *, minutes: float,
    folder: Path, rate: float = 1.5e-3, judge: Callable[[], float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train `student` for `minutes` of wall time in all, resuming from `folder` if a run was stopped there.

    objective: the loss of (student, examples), in nats or near it. judge: the loss of what is held out; in the end it
    says whether the last weights are kept or the best of those judged before, for few examples are soon known by heart.
    Returns `seconds`, `step`, the loss `curve` and, where judged, the `best` loss. Checkpoints are safetensors and
    JSON, each whole or not there; Ctrl-C leaves one where a step was made. The learning rate follows the clock. However
    little time there is, a step is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    optimiser = torch.optim.AdamW(student.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    progress, best = resume(folder, student, optimiser)
    budget, before, begun, saved, cost = minutes * 60, progress["seconds"], time.monotonic(), time.monotonic(), 0.0
    with tqdm(total=round(budget), initial=min(round(before), round(budget)), unit="s", desc="distil") as bar:
        try:
            while (elapsed := before + time.monotonic() - begun) < budget or not progress["step"]:
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
                if progress["step"] % JUDGE_EVERY == 0:
                    held_out = float("nan") if judge is None else judge()
                    place = {"seconds": round(elapsed), "step": progress["step"]}
                    progress["curve"].append(place | {"train": loss.item(), "held_out": held_out})
                    if held_out < progress.get("best", math.inf):
                        progress["best"], best = held_out, weights_of(student)
                bar.set_postfix(loss=f"{loss.item():.4f}", refresh=False)
                bar.update(min(round(elapsed), round(budget)) - round(bar.n))
                if time.monotonic() - saved > max(SAVE_EVERY, 20 * cost):
                    saved = time.monotonic()
                    checkpoint(folder, student, optimiser, progress, best)
                    saved, cost = time.monotonic(), time.monotonic() - saved
        except KeyboardInterrupt:
            if progress["step"]:
                checkpoint(folder, student, optimiser, progress, best)
            raise
    progress["seconds"] = max(budget, before)
    if best and judge is not None:
        if (last := judge()) > progress["best"]:
            student.load_state_dict(best, strict=False)
        else:
            progress["best"], best = last, weights_of(student)
    checkpoint(folder, student, optimiser, progress, best)
    return progress


def weights_of(student: Any) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in student.named_parameters()}


def checkpoint(
    folder: Path, student: Any, optimiser: torch.optim.Optimizer, progress: dict[str, Any], best: dict[str, Tensor]
) -> None:
    """Weights (bf16, what ships), and in one file master weights, the best ones, moments and how far the run is."""
    moments = {
        f"{index}.{key}": value.detach().clone()
        for index, state in optimiser.state_dict()["state"].items() for key, value in state.items()
    }  # fmt: skip
    masters = {f"master.{name}": weight for name, weight in weights_of(student).items()}
    masters |= {f"best.{name}": weight for name, weight in best.items()}
    with aside(folder) as made:
        save_file(moments | masters, made / STATE, {"progress": json.dumps(progress)})
        student.save_pretrained(made, state_dict=shipped(student))


def resume(folder: Path, student: Any, optimiser: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Restore what `checkpoint` wrote, a fresh start where nothing is: how far the run is, and its best weights."""
    if not (folder / STATE).exists():
        return {"seconds": 0.0, "step": 0, "curve": []}, {}
    state: dict[int, dict[str, Tensor]] = {}
    best: dict[str, Tensor] = {}
    masters = dict(student.named_parameters())
    with reading("run", folder), open_tensors(folder / STATE) as stored:
        shapes = {key: stored.get_slice(key).get_shape() for key in stored.keys()}  # noqa: SIM118 - it is no mapping
        if any(shapes.get(f"master.{name}") != list(weight.shape) for name, weight in masters.items()):
            raise InvalidArgument(f"{folder} holds a run that trained something else; give another folder.")
        for key in shapes:
            part, _, name = key.partition(".")
            if part == "master":
                with torch.no_grad():
                    masters[name].copy_(stored.get_tensor(key))
            elif part == "best":
                best[name] = stored.get_tensor(key).to(masters[name].device)
            else:
                state.setdefault(int(part), {})[name] = stored.get_tensor(key).clone()
        progress: dict[str, Any] = json.loads(stored.metadata()["progress"])
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return progress, best


def shallow_copy_of(target: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A student of text with the target's own embeddings, head, norm, and `layers` of its layers, first and last."""
    whole = target.config.get_text_config()
    depth = whole.num_hidden_layers
    chosen = [round(index * (depth - 1) / max(1, layers - 1)) for index in range(layers)]
    changes: dict[str, Any] = {"num_hidden_layers": layers}
    if getattr(whole, "layer_types", None):
        changes["layer_types"] = [whole.layer_types[place] for place in chosen]
    student, decoder, kept = text_decoder(whole, changes), target.get_decoder(), {}
    for name, tensor in decoder.state_dict().items():
        parts = name.split(".")
        if parts[0] == "layers":
            if int(parts[1]) not in chosen:
                continue
            parts[1] = str(chosen.index(int(parts[1])))
        # weights that were packed to be fast are nowhere else
        kept[".".join(parts)] = weight_of(owner(decoder, name)) if tensor.is_meta else tensor
    try:
        student.get_decoder().load_state_dict(kept)
    except RuntimeError as error:
        raise system_error(error, "a student cannot be made of the target's layers") or unlike(whole) from error
    with torch.no_grad():
        student.get_output_embeddings().weight.copy_(weight_of(target.get_output_embeddings()))
    return student


def text_decoder(config: PretrainedConfig, changes: dict[str, Any]) -> PreTrainedModel:
    """An fp32 causal LM with layers as `config` says, without what it has for pictures; changes: of the settings."""
    kind = CONFIG_MAPPING[TEXT_ONLY[config.model_type]] if config.model_type in TEXT_ONLY else type(config)
    settings = {name: value for name, value in config.to_dict().items() if name not in ("model_type", "architectures")}
    if isinstance(rope := settings.get("rope_parameters"), dict):
        settings["rope_parameters"] = {name: value for name, value in rope.items() if name not in GRIDS}
    try:
        made: PreTrainedModel = AutoModelForCausalLM.from_config(kind(**(settings | changes)))
    except ValueError as error:  # transformers knows no such decoder alone
        raise unlike(config) from error
    return made.float()


def unlike(config: PretrainedConfig) -> UnsupportedMethod:
    return UnsupportedMethod(
        f"layers of the kind {config.model_type!r} make no language model of their own here; train one of another "
        "kind, such as eagle."
    )


def owner(module: nn.Module, name: str) -> nn.Module:
    """The part of `module` whose weight has this name."""
    return module.get_submodule(name.rpartition(".")[0])
