"""One training run against the clock, in every process at once.

    run(model, [pointer], losses, batches.next, valid, keep, weights={"loss": 1.0, "pointing": 0.2}, minutes=60, …)

Hidden matrices by Muon, the rest by AdamW, a rate that follows the clock; the first process tells, judges held-out
batches now and then and in the end, and saves every few minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polydraft.apps.train.checkpoint import Curve, steps
from polydraft.apps.train.clock import Clock
from polydraft.apps.train.optimise import apply, descent, muon_and_adamw, same, set_rate
from polydraft.apps.train.together import average

TELL_EVERY, JUDGE_EVERY = 50, 500  # steps
SAVE_EVERY = 240  # seconds


def run(
    model: nn.Module, beside: Sequence[nn.Module], losses: Callable[[Any], Tensor], next_batch: Callable[[], Any],
    valid: Sequence[Any], keep: Callable[[Curve], None], *, weights: dict[str, float], minutes: float, rate: float,
    curve: Curve, rank: int, judge_every: int = JUDGE_EVERY, decay: float = 0.01, spent: float = 0.0,
    factor: Callable[[str], float] = same,
) -> None:  # fmt: skip
    """Train `model`, and what is only there to help it `beside`, for `minutes`.

    losses: of a batch, a value a name in `weights`, the first of them the one that counts. curve: of earlier runs.
    decay: of hidden matrices. spent: seconds of the minutes that a run which was stopped has had; the rate goes on from
    there. factor: of the rate, by the name of a weight of `model`.
    """
    past = curve[-1]["seconds"] if curve else 0
    before = steps(curve)
    helpers = [weight for module in beside for weight in module.parameters()]
    optimisers = muon_and_adamw(model, decay, factor)
    if helpers:
        optimisers.append(torch.optim.AdamW(helpers, lr=1.0, betas=(0.9, 0.95)))
    share = torch.tensor(list(weights.values()))
    clock, step, budget = Clock(), 0, minutes * 60 - spent
    elapsed = saved = 0.0
    model.train()
    while elapsed < budget:
        set_rate(optimisers, rate * descent((spent + elapsed) / (minutes * 60), step))
        parts = losses(next_batch())
        (parts @ share).backward()
        elapsed = average([*model.parameters(), *helpers], clock.spent())
        apply(optimisers, model)
        step += 1
        if rank:
            continue
        if step % TELL_EVERY == 0:
            print(f"{elapsed:6.0f}s step {step} {told(weights, parts)}", flush=True)
        if step % judge_every == 0 or elapsed >= budget:
            model.eval()
            with torch.no_grad():
                apart = torch.stack([losses(batch) for batch in valid])
            model.train()
            held = apart.mean(0)
            place = {"seconds": past + math.ceil(elapsed), "step": before + step}
            curve.append(place | {"train": parts[0].item(), "held_out": held[0].item()})
            each = f" each {apart[:, 0].tolist()}" if len(valid) > 1 else ""
            print(f"{elapsed:6.0f}s step {step} held-out {told(weights, held)}{each}", flush=True)
        if elapsed - saved > SAVE_EVERY:
            keep(curve)
            saved = elapsed
    if rank == 0:
        keep(curve)


def told(names: dict[str, float], values: Tensor) -> str:
    return " ".join(f"{name} {value:.4f}" for name, value in zip(names, values.tolist(), strict=True))
