"""Gaussian steps: densities, what one has over another, and the couplings that keep a drafted step as often as any can.

    kept = noise.uniform(K).log() < p.log_density(y) - q.log_density(y)
    x, kept = coupled(y, q, p, due, noise)          # a draw of p that is y, a draw of q, where `kept`

A standard deviation is one number a row, where the chain's noise is fixed, or one a coordinate, where a head learnt it;
a coordinate of deviation 0 is its mean, and has it in both laws or in neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.law.noise import Noise, Tries

WIDEST = 256  # proposals made at once


@dataclass(frozen=True)
class Gaussian:
    """Independent coordinates at every column, float64. mean: `[B, K, C]`; deviation: `[B, 1, 1]` or `[B, K, C]`.

    level: of fixed noise the chain's own deviation, before temperature; None where it was learnt. Known to the host.
    """

    mean: Tensor
    deviation: Tensor
    level: float | None = None

    @property
    def noisy(self) -> bool:
        """Whether every coordinate surely has noise."""
        return bool(self.level)

    @staticmethod
    def beside(parts: Sequence[Gaussian]) -> Gaussian:
        """Columns side by side."""
        fixed = parts[0].level is not None
        spreads = parts[0].deviation if fixed else torch.cat([part.deviation for part in parts], 1)
        return Gaussian(torch.cat([part.mean for part in parts], 1), spreads, parts[0].level)

    def upto(self, columns: int) -> Gaussian:
        """The first columns alone."""
        return Gaussian(self.mean[:, :columns], self.deviation[:, :columns], self.level)

    def at(self, columns: tuple[Tensor, ...]) -> Gaussian:
        """`[N, 1, C]`: of the columns at these rows and places `[N]`."""
        return Gaussian(self.mean[columns][:, None], self.deviation.expand_as(self.mean)[columns][:, None], self.level)

    def is_law(self) -> Tensor:
        """Return `[B, K]` bool: where means and deviations are numbers."""
        return (self.mean.isfinite() & self.deviation.isfinite()).all(-1)

    def drawn(self, normals: Tensor) -> Tensor:
        """`[B, K, C]`: draws, of standard normals."""
        return self.mean + self.deviation * normals

    def normals(self, x: Tensor) -> Tensor:
        """The standard normals that `drawn` makes x of; 0 where it needs none."""
        apart = x - self.mean
        return apart / self.deviation if self.noisy else torch.where(self.deviation > 0, apart / self.deviation, 0)

    def log_density(self, x: Tensor) -> Tensor:
        """`[B, K]`, up to a constant; -inf where a coordinate without noise is not its mean."""
        terms = -self.normals(x).square() / 2
        if self.noisy:
            return (terms - self.deviation.log()).sum(-1)
        silent = torch.where(x == self.mean, 0.0, -torch.inf)
        return torch.where(self.deviation > 0, terms - self.deviation.log(), silent).sum(-1)

    def log_spread(self) -> Tensor:
        """`[B, K]`: log of the product of the deviations, of coordinates that have noise."""
        spreads = self.deviation.expand_as(self.mean)
        return torch.where(spreads > 0, spreads.log(), 0).sum(-1)


def coupled(y: Tensor, q: Gaussian, p: Gaussian, due: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Draws of p `[B, K, C]` that are y, draws of q, as often as any draws can be; and where they are, `[B, K]`.

    due: `[B, K]` bool, where what is returned counts. y is kept with probability min(1, p/q). Where it is not, noise of
    equal deviations is reflected at the plane between the two means (Bou-Rabee, Eberle and Zimmer 2020, "Coupling and
    convergence for Hamiltonian Monte Carlo", section 2.3); elsewhere what p has over q is drawn, by trying (Leviathan
    et al. 2023, section 2.3, of densities).
    """
    kept = noise.uniform(y.shape[1]).log() < p.log_density(y) - q.log_density(y)
    if p.level is None or p.level != q.level:
        parted = excess(p, q, due & ~kept, noise.tries(y.shape[1]))
    else:
        parted = reflected(y, q, p) if p.noisy else p.mean
    return torch.where(kept[..., None], y, parted), kept


def reflected(y: Tensor, q: Gaussian, p: Gaussian) -> Tensor:
    """The draw of p whose noise is that of y under q, reflected; the two have one deviation."""
    z, apart = q.normals(y), (q.mean - p.mean) / p.deviation
    length = apart.square().sum(-1, keepdim=True)
    along = (z * apart).sum(-1, keepdim=True) / length.clamp(min=torch.finfo(length.dtype).tiny)
    return p.drawn(z - 2 * along * apart)


def excess(p: Gaussian, q: Gaussian, due: Tensor, tries: Tries) -> Tensor:
    """`[B, K, C]`: draws of (p - q)+ over its mass where `due` `[B, K]` holds, the mean of p elsewhere.

    One proposal more than the drafted step on average; an end of trying would bias.
    """
    drawn = p.mean.clone()
    pending, tried, width = due.nonzero(), 0, 1
    while len(pending):
        at = pending.unbind(1)
        proposals, passed = proposed(p.at(at), q.at(at), 0.0, tries.at(at), tried, width)
        done, first = passed.any(1), passed.byte().argmax(1)
        lines = torch.arange(len(done), device=done.device)
        drawn[tuple(part[done] for part in at)] = proposals[lines, first][done]
        pending, tried, width = pending[~done], tried + width, min(2 * width, WIDEST)
    return drawn


def proposed(
    p: Gaussian, q: Gaussian, lift: float | Tensor, tries: Tries, first: int, width: int
) -> tuple[Tensor, Tensor]:
    """`width` draws of p `[N, width, C]`, from the `first` on, and which pass with chance (e^lift p - q)+ / (e^lift p).

    p, q: `[N, 1, C]`; lift: `[N, 1]` or a number. Draws of what is not a number pass.
    """
    normals, uniforms = tries.draw(first, width, p.mean.shape[-1])
    x = p.drawn(normals)
    return x, ~(uniforms.log() <= q.log_density(x) - p.log_density(x) - lift)
