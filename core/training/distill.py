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
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel

from polydraft.core.decode import Method, decode, start
from polydraft.core.target import Prompt
from polydraft.core.training.examples import Examples, read
from polydraft.core.training.shipping import shipped


def collect(method: Method, prompts: list[Prompt]) -> list[Tensor]:
    """Generated ids of every prompt, drawn with `method` (an identical one costs nothing but time)."""
    batch = start(method, prompts)
    for _ in decode(method, batch):
        pass
    return batch.outputs()


def laws(target: PreTrainedModel, student: PreTrainedModel, examples: Examples) -> tuple[Tensor, Tensor]:
    """Log p and log q at the judged positions, `[M, V]` each; no gradient reaches the target."""
    with torch.no_grad():
        hidden = read(target, examples)[0][examples.judged]
        p = target.get_output_embeddings()(hidden).float().log_softmax(-1)
    text = examples.text()
    with torch.autocast(text.ids.device.type, torch.bfloat16):
        hidden = student.base_model(input_ids=text.ids).last_hidden_state[text.judged]
        q = student.get_output_embeddings()(hidden)
    return p, q.float().log_softmax(-1)


def divergence(target: PreTrainedModel, student: PreTrainedModel, examples: Examples) -> Tensor:
    """Mean KL(target || student) in nats over the judged positions."""
    p, q = laws(target, student, examples)
    return F.kl_div(q, p, log_target=True, reduction="batchmean")


def distil(
    objective: Callable[[Any, Examples], Tensor], student: Any, source: Iterator[Examples], *, minutes: float,
    folder: Path, rate: float = 1.5e-3, validate: Callable[[], Examples] | None = None,
) -> list[dict[str, float]]:  # fmt: skip
    """Train `student` for `minutes` of wall time in all, resuming from `folder` if a run was stopped there.

    objective: the loss of (student, examples), in nats or near it. Returns the loss curve. Checkpoints are safetensors
    and JSON; the learning rate follows the clock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    optimiser = torch.optim.AdamW(student.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    progress = resume(folder, student, optimiser)
    curve: list[dict[str, float]] = progress["curve"]
    budget, before, begun, saved = minutes * 60, progress["seconds"], time.monotonic(), time.monotonic()
    step, held = progress["step"], validate() if validate else None
    with tqdm(total=round(budget), initial=round(before), unit="s", desc="distil") as bar:
        while (elapsed := before + time.monotonic() - begun) < budget:
            factor = min(1.0, (step + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * elapsed / budget)))
            optimiser.param_groups[0]["lr"] = rate * factor
            loss = objective(student, next(source))
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimiser.step()
            step += 1
            if step % 50 == 0:
                with torch.no_grad():
                    held_out = objective(student, held).item() if held else float("nan")
                curve.append({"seconds": round(elapsed), "step": step, "train": loss.item(), "held_out": held_out})
            bar.set_postfix(loss=f"{loss.item():.4f}", refresh=False)
            bar.update(min(round(elapsed), bar.total) - bar.n)
            if time.monotonic() - saved > 60:
                checkpoint(folder, student, optimiser, {"seconds": elapsed, "step": step, "curve": curve})
                saved = time.monotonic()
    checkpoint(folder, student, optimiser, {"seconds": budget, "step": step, "curve": curve})
    return curve


def checkpoint(folder: Path, student: Any, optimiser: torch.optim.Optimizer, progress: dict) -> None:
    """Weights (bf16, what ships), master weights and moments, and how far the run is."""
    student.save_pretrained(folder, state_dict=shipped(student))
    moments = {
        f"{index}.{key}": value.detach().clone()
        for index, state in optimiser.state_dict()["state"].items() for key, value in state.items()
    }  # fmt: skip
    masters = {f"master.{name}": p.detach().clone() for name, p in student.named_parameters()}
    save_file(moments | masters, folder / "training.safetensors")
    (folder / "progress.json").write_text(json.dumps(progress))


def resume(folder: Path, student: Any, optimiser: torch.optim.Optimizer) -> dict:
    """Restore what `checkpoint` wrote; a fresh start where there is nothing."""
    if not (folder / "progress.json").exists():
        return {"seconds": 0.0, "step": 0, "curve": []}
    stored = load_file(folder / "training.safetensors")
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            parameter.copy_(stored.pop(f"master.{name}"))
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in stored.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return json.loads((folder / "progress.json").read_text())


def shallow_copy_of(target: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A student of text with the target's own embeddings, head, norm, and `layers` of its layers, first and last."""
    whole = target.config.get_text_config()
    depth = whole.num_hidden_layers
    chosen = [round(index * (depth - 1) / max(1, layers - 1)) for index in range(layers)]
    changes: dict[str, Any] = {"num_hidden_layers": layers}
    if getattr(whole, "layer_types", None):
        changes["layer_types"] = [whole.layer_types[place] for place in chosen]
    student: PreTrainedModel = AutoModelForCausalLM.from_config(type(whole)(**(whole.to_dict() | changes))).float()
    mine = student.get_decoder().state_dict()
    for name, tensor in target.get_decoder().state_dict().items():
        parts = name.split(".")
        if parts[0] == "layers":
            if int(parts[1]) not in chosen:
                continue
            parts[1] = str(chosen.index(int(parts[1])))
        mine[".".join(parts)].copy_(tensor)
    with torch.no_grad():
        student.get_output_embeddings().weight.copy_(target.get_output_embeddings().weight)
    return student
