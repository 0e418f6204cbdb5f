"""Gaussian steps: densities, residuals, and couplings that keep a drafted step as often as any coupling can.

    kept = noise.fresh_uniforms(K).log() < p.log_density(y) - q.log_density(y)
    x, kept = sample_maximal_coupling(y, q, p, active, noise)   # draws of p that are y, draws of q, where `kept`

A standard deviation is one number per row if the chain's noise is fixed, or one per coordinate if a head has learnt it.
A coordinate of standard deviation 0 equals its mean, and has no noise in both distributions or in neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.sampling.noise import Noise, RejectionDraws

MAX_PROPOSALS = 256  # proposals that are drawn at once


@dataclass(frozen=True)
class Gaussian:
    """Gaussian with independent coordinates at every column, float64."""

    mean: Tensor  # [B, K, C]
    std: Tensor  # [B, 1, 1] or [B, K, C]
    # standard deviation of a chain of fixed noise before temperature, known on the host; None if it is learnt
    fixed_std: float | None = None

    @property
    def is_noisy(self) -> bool:
        """Return whether every coordinate is known to have noise."""
        return bool(self.fixed_std)

    @staticmethod
    def concatenate(parts: Sequence[Gaussian]) -> Gaussian:
        """Join Gaussians along the columns."""
        is_fixed = parts[0].fixed_std is not None
        std = parts[0].std if is_fixed else torch.cat([part.std for part in parts], 1)
        return Gaussian(torch.cat([part.mean for part in parts], 1), std, parts[0].fixed_std)

    def first_columns(self, columns: int) -> Gaussian:
        """Return the first `columns` columns."""
        return Gaussian(self.mean[:, :columns], self.std[:, :columns], self.fixed_std)

    def select(self, index: tuple[Tensor, ...]) -> Gaussian:
        """Return the columns at rows and columns `index` `[N]`, as `[N, 1, C]`."""
        return Gaussian(self.mean[index][:, None], self.std.expand_as(self.mean)[index][:, None], self.fixed_std)

    def is_finite(self) -> Tensor:
        """Return a mask `[B, K]` of columns with finite means and standard deviations."""
        return (self.mean.isfinite() & self.std.isfinite()).all(-1)

    def from_normals(self, normals: Tensor) -> Tensor:
        """Return the draws that standard normals give, `[B, K, C]`."""
        return self.mean + self.std * normals

    def to_normals(self, x: Tensor) -> Tensor:
        """Return the standard normals that give x in `from_normals`; 0 for coordinates without noise."""
        difference = x - self.mean
        return difference / self.std if self.is_noisy else torch.where(self.std > 0, difference / self.std, 0)

    def log_density(self, x: Tensor) -> Tensor:
        """Return the log density at x `[B, K]` up to a constant; -inf if a coordinate without noise is not its mean."""
        terms = -self.to_normals(x).square() / 2
        if self.is_noisy:
            return (terms - self.std.log()).sum(-1)
        without_noise = torch.where(x == self.mean, 0.0, -torch.inf)
        return torch.where(self.std > 0, terms - self.std.log(), without_noise).sum(-1)

    def log_std_product(self) -> Tensor:
        """Return the log of the product of the standard deviations of coordinates that have noise, `[B, K]`."""
        std = self.std.expand_as(self.mean)
        return torch.where(std > 0, std.log(), 0).sum(-1)


def sample_maximal_coupling(y: Tensor, q: Gaussian, p: Gaussian, active: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Return draws of p that equal y, draws of q, as often as any coupling allows.

    y is kept with probability min(1, p/q). Otherwise, if the standard deviations are equal, its noise is reflected at
    the plane between the two means (Bou-Rabee, Eberle and Zimmer 2020, "Coupling and convergence for Hamiltonian Monte
    Carlo", section 2.3); if not, the residual of p over q is drawn by rejection (Leviathan et al. 2023, section 2.3,
    for densities).

    Args:
        y (Tensor): [B, K, C] draws of q.
        q (Gaussian): Distribution of y.
        p (Gaussian): Distribution to draw from.
        active (Tensor): [B, K] bool, columns whose result counts.
        noise (Noise): Noise of the batch.

    Returns:
        tuple[Tensor, Tensor]: draws [B, K, C], and a mask [B, K] of those that are y.
    """
    kept = noise.fresh_uniforms(y.shape[1]).log() < p.log_density(y) - q.log_density(y)
    if p.fixed_std is None or p.fixed_std != q.fixed_std:
        otherwise = sample_residual(p, q, active & ~kept, noise.rejection_draws(y.shape[1]))
    else:
        otherwise = reflect_noise(y, q, p) if p.is_noisy else p.mean
    return torch.where(kept[..., None], y, otherwise), kept


def reflect_noise(y: Tensor, q: Gaussian, p: Gaussian) -> Tensor:
    """Return the draw of p whose noise is that of y under q, reflected; both have the same standard deviation."""
    z, shift = q.to_normals(y), (q.mean - p.mean) / p.std
    length = shift.square().sum(-1, keepdim=True)
    along = (z * shift).sum(-1, keepdim=True) / length.clamp(min=torch.finfo(length.dtype).tiny)
    return p.from_normals(z - 2 * along * shift)


def sample_residual(p: Gaussian, q: Gaussian, active: Tensor, draws: RejectionDraws) -> Tensor:
    """Return draws of the normalised residual (p - q)+ where `active` `[B, K]` is set, else the mean of p, `[B, K, C]`.

    On average this takes one proposal more than the drafted step; a limit on proposals would bias the result.
    """
    x = p.mean.clone()
    pending, num_tried, width = active.nonzero(), 0, 1
    while len(pending):
        index = pending.unbind(1)
        proposals, passed = propose(p.select(index), q.select(index), 0.0, draws.select(index), num_tried, width)
        done, first = passed.any(1), passed.byte().argmax(1)
        rows = torch.arange(len(done), device=done.device)
        x[tuple(part[done] for part in index)] = proposals[rows, first][done]
        pending, num_tried, width = pending[~done], num_tried + width, min(2 * width, MAX_PROPOSALS)
    return x


def propose(
    p: Gaussian, q: Gaussian, log_factor: float | Tensor, draws: RejectionDraws, first: int, width: int
) -> tuple[Tensor, Tensor]:
    """Draw proposals of p, which pass with probability (f p - q)+ / (f p) for f = e^log_factor.

    Args:
        p (Gaussian): [N, 1, C] distribution of the proposals.
        q (Gaussian): [N, 1, C] distribution that is subtracted.
        log_factor (float | Tensor): [N, 1], or a number.
        draws (RejectionDraws): Noise of the proposals.
        first (int): Index of the first proposal.
        width (int): Number of proposals.

    Returns:
        tuple[Tensor, Tensor]: proposals [N, width, C], and a mask [N, width] of those that pass; proposals that are not
            finite pass.
    """
    normals, uniforms = draws.draw(first, width, p.mean.shape[-1])
    x = p.from_normals(normals)
    return x, ~(uniforms.log() <= q.log_density(x) - p.log_density(x) - log_factor)
