"""Gaussian steps: densities, residuals, and couplings that keep a drafted step as often as any coupling can.

    is_kept = noise.fresh_uniforms(K).log() < p.log_density(y) - q.log_density(y)
    x, is_kept = sample_maximal_coupling(y, q, p, active, noise)   # samples of p; those of q, y, where `is_kept`

A standard deviation is one number per batch row if the chain's noise is fixed, or one per coordinate if a head has
learnt it. A coordinate of standard deviation 0 equals its mean, and has no noise in both distributions or in neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.sampling.noise import Noise, RejectionDraws

MAX_PROPOSALS = 256  # largest number of proposals per batched draw of rejection sampling


@dataclass(frozen=True)
class Gaussian:
    """Gaussian with C independent coordinates at each of K positions of every sequence, float64."""

    mean: Tensor  # [B, K, C]
    std: Tensor  # [B, 1, 1] or [B, K, C]
    # standard deviation of a chain of fixed noise before temperature, known on the host; None if it is learnt
    fixed_std: float | None = None

    @property
    def is_noisy(self) -> bool:
        """Return whether every coordinate has noise, as far as the host knows: False if `fixed_std` is 0 or None."""
        return bool(self.fixed_std)

    @staticmethod
    def concatenate(parts: Sequence[Gaussian]) -> Gaussian:
        """Join Gaussians of successive positions along K; all must have the same `fixed_std`."""
        is_fixed = parts[0].fixed_std is not None
        std = parts[0].std if is_fixed else torch.cat([part.std for part in parts], 1)
        return Gaussian(torch.cat([part.mean for part in parts], 1), std, parts[0].fixed_std)

    def first_positions(self, num: int) -> Gaussian:
        """Return the Gaussians at the first `num` of the K positions."""
        return Gaussian(self.mean[:, :num], self.std[:, :num], self.fixed_std)

    def select(self, index: tuple[Tensor, ...]) -> Gaussian:
        """Return the Gaussians at `index`, a pair of batch rows `[N]` and positions `[N]`, with mean `[N, 1, C]`."""
        return Gaussian(self.mean[index][:, None], self.std.expand_as(self.mean)[index][:, None], self.fixed_std)

    def is_finite(self) -> Tensor:
        """Return a mask `[B, K]` of positions whose means and standard deviations are all finite."""
        return (self.mean.isfinite() & self.std.isfinite()).all(-1)

    def from_normals(self, normals: Tensor) -> Tensor:
        """Return the samples `mean + std * normals`, `[B, K, C]`."""
        return self.mean + self.std * normals

    def to_normals(self, x: Tensor) -> Tensor:
        """Return the standard normals `[B, K, C]` that `from_normals` maps to x; 0 for coordinates without noise."""
        difference = x - self.mean
        return difference / self.std if self.is_noisy else torch.where(self.std > 0, difference / self.std, 0)

    def log_density(self, x: Tensor) -> Tensor:
        """Return the log density `[B, K]` at x `[B, K, C]`, up to a constant that depends on C alone.

        It is -inf if a coordinate of standard deviation 0 differs from its mean.
        """
        exponents = -self.to_normals(x).square() / 2
        if self.is_noisy:  # no standard deviation is 0
            return (exponents - self.std.log()).sum(-1)
        without_noise = torch.where(x == self.mean, 0.0, -torch.inf)  # log of a point mass at the mean
        return torch.where(self.std > 0, exponents - self.std.log(), without_noise).sum(-1)

    def log_std_product(self) -> Tensor:
        """Return the log of the product of the standard deviations of coordinates that have noise, `[B, K]`."""
        std = self.std.expand_as(self.mean)
        return torch.where(std > 0, std.log(), 0).sum(-1)


def sample_maximal_coupling(y: Tensor, q: Gaussian, p: Gaussian, active: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Sample from p such that the result equals y, a sample of q, with the highest probability that is possible.

    y is kept with probability min(1, p(y)/q(y)). Otherwise, if both standard deviations are fixed and equal, its noise
    is reflected at the plane between the two means (Bou-Rabee, Eberle and Zimmer 2020, "Coupling and convergence for
    Hamiltonian Monte Carlo", section 2.3); if not, the residual of p over q is drawn by rejection (Leviathan et al.
    2023, section 2.3, for densities).

    Args:
        y (Tensor): [B, K, C] samples of q.
        q (Gaussian): Distribution of y.
        p (Gaussian): Distribution to sample from.
        active (Tensor): [B, K] bool, positions whose result is used; elsewhere the samples may be anything.
        noise (Noise): Noise of the batch; fresh noise is used.

    Returns:
        tuple[Tensor, Tensor]: samples of p [B, K, C], and a mask [B, K] of positions where y was kept.
    """
    is_kept = noise.fresh_uniforms(y.shape[1]).log() < p.log_density(y) - q.log_density(y)
    if p.fixed_std is None or p.fixed_std != q.fixed_std:  # standard deviations differ, or may differ
        replacement = sample_residual(p, q, active & ~is_kept, noise.rejection_draws(y.shape[1]))
    else:  # equal ones; without noise (0) the only sample of p is its mean
        replacement = reflect_noise(y, q, p) if p.is_noisy else p.mean
    return torch.where(is_kept[..., None], y, replacement), is_kept


def reflect_noise(y: Tensor, q: Gaussian, p: Gaussian) -> Tensor:
    """Return a sample of p whose noise is the noise of y, reflected at the plane between the means of q and p.

    If q and p have the same standard deviation, this turns a sample y of q that a maximal coupling rejected into a
    sample of the residual of p. `y` and the result are `[B, K, C]`.
    """
    # noise of y and distance of the means, in units of the standard deviation
    normals, shift = q.to_normals(y), (q.mean - p.mean) / p.std
    squared_length = shift.square().sum(-1, keepdim=True)
    # equal means, a length of 0, need no reflection; the clamp avoids 0 / 0
    projection = (normals * shift).sum(-1, keepdim=True) / squared_length.clamp(min=torch.finfo(shift.dtype).tiny)
    return p.from_normals(normals - 2 * projection * shift)


def sample_residual(p: Gaussian, q: Gaussian, active: Tensor, draws: RejectionDraws) -> Tensor:
    """Sample the normalised residual max(p - q, 0) by rejection.

    The number of proposals is not limited, since a limit would bias the result.

    Args:
        p (Gaussian): [B, K, C] target distribution, from which proposals are drawn.
        q (Gaussian): [B, K, C] draft distribution.
        active (Tensor): [B, K] bool, positions that need a sample.
        draws (RejectionDraws): [B, K] noise streams of the proposals.

    Returns:
        Tensor: [B, K, C] samples where `active` is set, the mean of p elsewhere.
    """
    x = p.mean.clone()
    # proposals are drawn in rounds of 1, 2, 4, … per position that has no sample yet
    pending, num_previous, num_proposals = active.nonzero(), 0, 1  # pending: [M, 2] batch rows and positions
    while len(pending):
        index = pending.unbind(1)
        proposals, is_accepted = draw_proposals(
            p.select(index), q.select(index), 0.0, draws.select(index), num_previous, num_proposals
        )  # [M, num_proposals, C] and [M, num_proposals]
        is_done, first_accepted = is_accepted.any(1), is_accepted.byte().argmax(1)  # argmax: first of equal values
        proposal_rows = torch.arange(len(is_done), device=is_done.device)
        # write the first accepted proposal of the M pending positions that have one
        x[tuple(part[is_done] for part in index)] = proposals[proposal_rows, first_accepted][is_done]
        pending, num_previous = pending[~is_done], num_previous + num_proposals
        num_proposals = min(2 * num_proposals, MAX_PROPOSALS)
    return x


def draw_proposals(
    p: Gaussian, q: Gaussian, log_factor: float | Tensor, draws: RejectionDraws, num_previous: int, num_proposals: int
) -> tuple[Tensor, Tensor]:
    """Propose samples of p for rejection sampling of the residual max(f p - q, 0), where f = exp(log_factor).

    A proposal is accepted with probability max(f p - q, 0) / (f p).

    Args:
        p (Gaussian): [N, 1, C] distribution of the proposals.
        q (Gaussian): [N, 1, C] distribution that is subtracted.
        log_factor (float | Tensor): [N, 1] log f, or one number for all.
        draws (RejectionDraws): [N] noise streams of the proposals.
        num_previous (int): Number of proposals that earlier calls took from the streams.
        num_proposals (int): Number of proposals per stream.

    Returns:
        tuple[Tensor, Tensor]: proposals [N, num_proposals, C], and a mask [N, num_proposals] of accepted ones. NaN
            proposals count as accepted, so that rejection sampling always ends.
    """
    normals, uniforms = draws.draw(num_previous, num_proposals, p.mean.shape[-1])
    x = p.from_normals(normals)
    # accepted where uniform > q / (f p), which has the probability 1 - q / (f p), or 0 if that is negative; written as
    # a negation, so that NaN, with which every comparison is False, is accepted
    return x, ~(uniforms.log() <= q.log_density(x) - p.log_density(x) - log_factor)
