"""How the embedded language models are trained: hidden matrices by Muon (Jordan et al. 2024), the rest by AdamW.

optimisers = muon_and_adamw(model)
set_rate(optimisers, rate * descent(elapsed / budget, step))
"""

from __future__ import annotations

import torch

WARM_UP = 100  # steps


def muon_and_adamw(model: torch.nn.Module, decay: float = 0.01) -> list[torch.optim.Optimizer]:
    """Hidden matrices for Muon, whose weights decay; embeddings, heads and norms for AdamW."""
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    hidden = [weight for name, weight in named if weight.ndim == 2 and "embed" not in name and "lm_head" not in name]
    rest = [weight for _, weight in named if not any(weight is other for other in hidden)]
    return [
        torch.optim.Muon(hidden, lr=1.0, weight_decay=decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=1.0, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def descent(spent: float, step: int) -> float:
    """Share of the highest rate: a linear descent from a tenth of the budget on; at a fixed budget, ending annealed
    is what matters. spent: share of the budget that is gone."""
    return min(1.0, (step + 1) / WARM_UP) * min(1.0, max(0.01, (1 - spent) / 0.9))


def set_rate(optimisers: list[torch.optim.Optimizer], rate: float) -> None:
    for optimiser in optimisers:
        optimiser.param_groups[0]["lr"] = rate


def apply(optimisers: list[torch.optim.Optimizer], model: torch.nn.Module) -> None:
    """One step on the gradients there are, clipped."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimiser in optimisers:
        optimiser.step()
        optimiser.zero_grad()
