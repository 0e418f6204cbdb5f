"""One training run against the clock, in every process at once.

    run(model, [pointer], losses, batches.next, valid, keep, weights={"loss": 1.0, "pointing": 0.2}, minutes=60, …)

Hidden matrices are trained by Muon, the rest by AdamW, at a rate that follows the clock. The first process prints
losses, evaluates held_out_losses-out batches now and then and at the end, and saves every few minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polydraft.apps.lab.training.checkpoint import Curve, num_steps
from polydraft.apps.lab.training.clock import Clock
from polydraft.apps.lab.training.distributed import average_gradients
from polydraft.apps.lab.training.optimizer import (
    apply_gradients,
    constant_factor,
    linear_decay,
    muon_and_adamw,
    set_rate,
)

PRINT_EVERY, JUDGE_EVERY = 50, 500  # steps
SAVE_EVERY = 240  # seconds


def train(
    model: nn.Module, auxiliary_modules: Sequence[nn.Module], losses: Callable[[Any], Tensor],
    next_batch: Callable[[], Any], valid: Sequence[Any], keep: Callable[[Curve], None], *, weights: dict[str, float],
    minutes: float, rate: float, curve: Curve, rank: int, judge_every: int = JUDGE_EVERY, decay: float = 0.01,
    spent: float = 0.0,
    factor: Callable[[str], float] = constant_factor,
) -> None:  # fmt: skip
    """Train `model` and its auxiliary modules for `minutes`.

    Args:
        model (nn.Module): the model that is kept.
        auxiliary_modules (Sequence[nn.Module]): modules that only help to train it.
        losses (Callable): losses [len(weights)] of a batch; the first is the one of the curve.
        next_batch (Callable): returns a training batch.
        valid (Sequence): held-out batches.
        keep (Callable): saves the model and the curve.
        weights (dict[str, float]): weight of every loss by its name.
        minutes (float): wall time.
        rate (float): highest learning rate.
        curve (Curve): curve of earlier runs; it is extended.
        rank (int): of this process; only rank 0 evaluates and saves.
        judge_every (int): steps between evaluations.
        decay (float): weight decay of hidden matrices.
        spent (float): seconds of the minutes that an interrupted run has had; the rate continues from there.
        factor (Callable): factor of the rate by the name of a parameter of `model`.
    """
    past = curve[-1]["seconds"] if curve else 0
    before = num_steps(curve)
    helpers = [weight for module in auxiliary_modules for weight in module.parameters()]
    optimisers = muon_and_adamw(model, decay, factor)
    if helpers:
        optimisers.append(torch.optim.AdamW(helpers, lr=1.0, betas=(0.9, 0.95)))
    share = torch.tensor(list(weights.values()))
    clock, step, budget = Clock(), 0, minutes * 60 - spent
    elapsed = last_saved = 0.0
    model.train()
    while elapsed < budget:
        set_rate(optimisers, rate * linear_decay((spent + elapsed) / (minutes * 60), step))
        parts = losses(next_batch())
        (parts @ share).backward()
        elapsed = average_gradients([*model.parameters(), *helpers], clock.spent())
        apply_gradients(optimisers, model)
        step += 1
        if rank:
            continue
        if step % PRINT_EVERY == 0:
            print(f"{elapsed:6.0f}s step {step} {format_losses(weights, parts)}", flush=True)
        if step % judge_every == 0 or elapsed >= budget:
            model.eval()
            with torch.no_grad():
                batch_losses = torch.stack([losses(batch) for batch in valid])
            model.train()
            held_out_losses = batch_losses.mean(0)
            point = {"seconds": past + math.ceil(elapsed), "step": before + step}
            curve.append(point | {"train": parts[0].item(), "held_out": held_out_losses[0].item()})
            each = f" each {batch_losses[:, 0].tolist()}" if len(valid) > 1 else ""
            print(f"{elapsed:6.0f}s step {step} held-out {format_losses(weights, held_out_losses)}{each}", flush=True)
        if elapsed - last_saved > SAVE_EVERY:
            keep(curve)
            last_saved = elapsed
    if rank == 0:
        keep(curve)


def format_losses(names: dict[str, float], values: Tensor) -> str:
    return " ".join(f"{name} {value:.4f}" for name, value in zip(names, values.tolist(), strict=True))
