"""Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"), distributed over processes.

    optimiser = Muon(matrices, lr=1e-3, weight_decay=0.01)

`torch.optim.Muon` takes the same steps, but always in bf16, which some processors multiply eight times slower than
fp32, and all of them in every process. Here every process takes its part of the matrices, in the fastest precision.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from polydraft.apps.lab.training.distributed import map_distributed
from polydraft.core.model.precision import fast_dtype

QUINTIC = 3.4445, -4.775, 2.0315  # a, b, c of x <- a x + b (x xT) x + c (x xT)^2 x, steepest at 0
ITERATIONS = 5
SCALE = 0.2  # root mean square of a step as long as AdamW's (Liu et al. 2025, "Muon is Scalable for LLM Training")


class Muon(torch.optim.Optimizer):
    """Optimizer of matrices [N, M]: orthogonalised Nesterov momentum with weight decay."""

    def __init__(
        self, weights: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0.01, momentum: float = 0.95
    ) -> None:
        super().__init__(weights, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            momenta = [self.nesterov_momentum(weight, group["momentum"]) for weight in weights]
            for weight, direction in zip(weights, map_distributed(orthogonalise, momenta), strict=True):
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(direction, alpha=-group["lr"] * SCALE * max(weight.shape) ** 0.5)

    def nesterov_momentum(self, weight: Tensor, momentum: float) -> Tensor:
        """Update the momentum and return the gradient interpolated towards it."""
        assert weight.grad is not None
        momentum_buffer = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
        momentum_buffer.lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(momentum_buffer, momentum)


def orthogonalise(matrix: Tensor) -> Tensor:
    """Bring the singular values of a matrix [N, M] near 1 by Newton-Schulz iterations."""
    a, b, c = QUINTIC
    wide = matrix.shape[0] <= matrix.shape[1]
    x = (matrix if wide else matrix.T).to(fast_dtype())
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x if wide else x.T).to(matrix.dtype)
