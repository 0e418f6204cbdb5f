"""Densities of Gaussians whose variances differ, and draws of what one has over another.

p, q = Gaussian(mean_p, log_variance_p), Gaussian(mean_q, log_variance_q)
kept = dice.uniforms(0).log() < p.log_density(y) - q.log_density(y)
rest, _ = residual(p, q, lift, dice, first=1)      # of the density (p - q)+ / its mass, where lift is 0
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.modalities.image.families.mar.noise import Dice

WIDEST = 256  # proposals made at once


@dataclass(frozen=True)
class Gaussian:
    """Independent coordinates, `[N, C]` both; a draw of N tokens is N draws."""

    mean: Tensor
    log_variance: Tensor

    def of(self, tokens: Tensor) -> Gaussian:
        """Of those tokens alone, indices or mask."""
        return Gaussian(self.mean[tokens], self.log_variance[tokens])

    def draw(self, normals: Tensor) -> Tensor:
        """Draws of normals `[N, C]` of unit variance."""
        return self.mean + (0.5 * self.log_variance).exp() * normals

    def log_density(self, x: Tensor) -> Tensor:
        """`[N]` float64, up to a constant that is the same for all Gaussians of as many coordinates."""
        apart, log_variance = x.double() - self.mean.double(), self.log_variance.double()
        return -0.5 * (apart.square() * (-log_variance).exp() + log_variance).sum(-1)


def residual(
    p: Gaussian, q: Gaussian, lift: Tensor, dice: Dice, first: int, most: int | None = None
) -> tuple[Tensor, Tensor]:
    """Draws `[N, C]` of the density (e^lift p - q)+ over its mass, and how many proposals each took, `[N]`.

    A draw x of p is kept with probability 1 - min(1, q(x) / (e^lift p(x))), which is tried until one is. lift: `[N]`
    float64. first: the first draw of `dice` to be used. most: proposals after which the last one is taken as it is,
    which is wrong where no end of trying is not.
    """
    size = p.mean.shape[-1]
    drawn, took = torch.empty_like(p.mean), torch.zeros(len(p.mean), dtype=torch.long, device=p.mean.device)
    pending, tried, width = torch.arange(len(drawn), device=drawn.device), 0, 1
    while len(pending):
        width = width if most is None else min(width, most - tried)
        each = pending.repeat_interleave(width)
        own = dice.of(each)
        draws = first + tried + torch.arange(width, device=drawn.device).repeat(len(pending))
        proposals = p.of(each).draw(own.normals(draws, size))
        excess = q.of(each).log_density(proposals) - lift[each] - p.of(each).log_density(proposals)
        kept = ~(own.uniforms(draws, 2 * size).log() <= excess).view(-1, width)  # what is not a number ends, too
        tried += width
        if tried == most:
            kept[:, -1] = True
        done, which = kept.any(1), kept.byte().argmax(1)
        drawn[pending[done]] = proposals.view(-1, width, size)[done, which[done]]
        took[pending[done]] = tried - width + which[done] + 1
        pending, width = pending[~done], min(2 * width, WIDEST)
    return drawn, took
