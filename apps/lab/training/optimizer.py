"""Optimizers and learning-rate schedules: hidden matrices by Muon (Jordan et al. 2024), the rest by AdamW.

optimisers = muon_and_adamw(model)
set_rate(optimisers, rate * linear_decay(elapsed / budget, step))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from polydraft.apps.lab.training.muon import Muon

WARM_UP = 100  # steps


def constant_factor(name: str) -> float:
    """Return 1 for every parameter."""
    return 1.0


def muon_and_adamw(
    model: torch.nn.Module, decay: float = 0.01, factor: Callable[[str], float] = constant_factor
) -> list[torch.optim.Optimizer]:
    """Build Muon with weight decay for hidden matrices, and AdamW for embeddings, heads and norms.

    Args:
        model (nn.Module): its trainable parameters are optimised.
        decay (float): weight decay of hidden matrices.
        factor (Callable): factor of the learning rate by the name of a parameter.
    """
    hidden: dict[float, list[torch.nn.Parameter]] = {}
    rest: dict[float, list[torch.nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            matrix = weight.ndim == 2 and "embed" not in name and "lm_head" not in name
            (hidden if matrix else rest).setdefault(factor(name), []).append(weight)
    return [
        Muon(param_groups(hidden), lr=1.0, weight_decay=decay),
        torch.optim.AdamW(param_groups(rest), lr=1.0, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def param_groups(weights: dict[float, list[torch.nn.Parameter]]) -> list[dict[str, Any]]:
    return [{"params": parameters, "factor": factor} for factor, parameters in weights.items()]


def linear_decay(spent: float, step: int) -> float:
    """Return the share of the highest rate: warm-up, then linear decay from a tenth of the budget on.

    Args:
        spent (float): share of the budget that is used, 0..1.
        step (int): number of the step, from 0.
    """
    return min(1.0, (step + 1) / WARM_UP) * min(1.0, max(0.01, (1 - spent) / 0.9))


def cosine_decay(spent: float, step: int = WARM_UP) -> float:
    """Return the share of the highest rate: warm-up, and half a cosine down to a fiftieth.

    Args:
        spent (float): share of the budget that is used, 0..1.
        step (int): number of the step, from 0; by default past the warm-up.
    """
    return min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.49 * (1 + math.cos(math.pi * min(spent, 1))))


def set_rate(optimisers: list[torch.optim.Optimizer], rate: float) -> None:
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = rate * group.get("factor", 1.0)


def apply_gradients(optimisers: list[torch.optim.Optimizer], model: torch.nn.Module) -> None:
    """Take a step on the clipped gradients, and clear them."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimiser in optimisers:
        optimiser.step()
        optimiser.zero_grad()
