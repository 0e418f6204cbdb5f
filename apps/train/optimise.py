"""How the embedded language models are trained: hidden matrices by Muon (Jordan et al. 2024), the rest by AdamW.

optimisers = muon_and_adamw(model)
set_rate(optimisers, rate * descent(elapsed / budget, step))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from polydraft.apps.train.muon import Muon

WARM_UP = 100  # steps


def same(name: str) -> float:
    """Every weight at the same rate."""
    return 1.0


def muon_and_adamw(
    model: torch.nn.Module, decay: float = 0.01, factor: Callable[[str], float] = same
) -> list[torch.optim.Optimizer]:
    """Hidden matrices for Muon, whose weights decay; embeddings, heads and norms for AdamW. factor: of the rate, by a
    weight's name."""
    hidden: dict[float, list[torch.nn.Parameter]] = {}
    rest: dict[float, list[torch.nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            matrix = weight.ndim == 2 and "embed" not in name and "lm_head" not in name
            (hidden if matrix else rest).setdefault(factor(name), []).append(weight)
    return [
        Muon(grouped(hidden), lr=1.0, weight_decay=decay),
        torch.optim.AdamW(grouped(rest), lr=1.0, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def grouped(weights: dict[float, list[torch.nn.Parameter]]) -> list[dict[str, Any]]:
    return [{"params": some, "factor": factor} for factor, some in weights.items()]


def descent(spent: float, step: int) -> float:
    """Share of the highest rate: a linear descent from a tenth of the budget on; at a fixed budget, ending annealed
    is what matters. spent: share of the budget that is gone."""
    return min(1.0, (step + 1) / WARM_UP) * min(1.0, max(0.01, (1 - spent) / 0.9))


def annealed(spent: float, step: int = WARM_UP) -> float:
    """Share of the highest rate: half a cosine down to a fiftieth, as autoencoders are trained; spent as above. step:
    from 0, while the rate still rises."""
    return min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.49 * (1 + math.cos(math.pi * min(spent, 1))))


def set_rate(optimisers: list[torch.optim.Optimizer], rate: float) -> None:
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = rate * group.get("factor", 1.0)


def apply(optimisers: list[torch.optim.Optimizer], model: torch.nn.Module) -> None:
    """One step on the gradients there are, clipped."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimiser in optimisers:
        optimiser.step()
        optimiser.zero_grad()
