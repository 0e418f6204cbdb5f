"""Continuous speculative decoding as published: lossy, for comparison (CSpD, Wang et al. 2024, arXiv 2411.11925).

Target and draft run their chains with the same noise at every step, so that they stay close (trajectory alignment), and
the drafted latent is kept with `min(1, Σ p(x0 | x1) / q(x0 | x1))`, each under its own x1. Σ is the product over the
earlier steps of the ratio of standard deviations, draft over target; chains of fixed noise have Σ = 1. A latent that is
not kept is drawn again from the target's last step until one passes with `[Σp - q]+ / Σp`, and the first latents of an
image are the target's alone (pre-filling). If Σ is 1 this is a coupling of two last steps, each after a draw of its own
chain, and keeps the distribution except for the limit on attempts; otherwise the result is close to the target's
distribution but not equal to it. The code that the authors published takes the reciprocal of Σ, divides standard
deviations by 42 in the test and adds no noise in the last step; this is the formula of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.batched_state import next_positions
from polydraft.core.continuous.denoising import LatentDistribution, SampledTrajectory
from polydraft.core.continuous.gaussian import Gaussian, propose
from polydraft.core.draft import Draft
from polydraft.core.sampling.noise import Noise, RejectionDraws
from polydraft.core.tokens import batch_gather, batch_scatter_
from polydraft.core.verification import VerificationResult, accept_to_node

MAX_ATTEMPTS = 100  # draws of a residual; if none passes the last one counts, a draw of the target


@dataclass(frozen=True)
class ContinuousSpeculative:
    """Verifier of continuous speculative decoding (CSpD)."""

    prefill: int = 13  # first latents, which the target draws alone

    guarantee = "lossy"
    uses_shared_noise = False

    def verify(
        self, draft: Draft, distribution: LatentDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        """Accept latents by the ratio of the last steps' densities."""
        normals = distribution.draw_normals(noise)
        if not draft.size:
            return accept_to_node(draft.valid.sum(1), draft, distribution.sample_trajectory(normals).latents)
        is_finite = draft.q.states.isfinite().all((2, 3))
        tested = draft.valid & is_finite & (next_positions(num_generated, draft.size) >= self.prefill)
        normals = shared_normals(normals, draft.q, tested, distribution.chain.init_std)
        trajectory = distribution.sample_trajectory(normals)
        p, q = trajectory.steps[-1].first_columns(draft.size), draft.q.steps[-1]
        drafted, log_sigma = draft.q.states[:, :, -1], log_sigma_ratio(draft.q, trajectory)
        log_ratio = log_sigma + p.log_density(drafted) - q.log_density(drafted)
        kept = tested & (noise.fresh_uniforms(draft.size).log() < log_ratio)
        num_accepted = kept.cumprod(1).sum(1)
        failed = num_accepted.clamp(max=draft.size - 1)
        rows = torch.arange(len(num_generated), device=num_generated.device)
        is_rejected = (num_accepted < draft.size) & tested[rows, failed]  # elsewhere no latent was tested
        index = rows, failed
        residual = sample_residual_with_limit(
            p.select(index), q.select(index), log_sigma[index][:, None],
            noise.rejection_draws(draft.size).select(index),
        )  # fmt: skip
        latents = trajectory.latents  # [B, N+1, C], the target's where nothing was rejected
        last = torch.where(is_rejected[:, None], residual, latents[rows, num_accepted])
        batch_scatter_(latents, num_accepted[:, None], last[:, None])
        return accept_to_node(num_accepted, draft, latents)


def shared_normals(normals: Tensor, trajectory: SampledTrajectory, shared: Tensor, init_std: float) -> Tensor:
    """Replace `normals` `[1+T, B, N+1, C]` by those that drove `trajectory` where `shared` `[B, N]` is set."""
    draft_normals = [trajectory.states[:, :, 0] / init_std]
    draft_normals += [
        gaussian.to_normals(trajectory.states[:, :, step + 1]) for step, gaussian in enumerate(trajectory.steps)
    ]
    nodes = torch.where(shared[..., None], torch.stack(draft_normals), normals[:, :, :-1])
    return torch.cat([nodes, normals[:, :, -1:]], 2)


def log_sigma_ratio(q: SampledTrajectory, p: SampledTrajectory) -> Tensor:
    """Return log Σ of the draft's trajectories q of N columns and the target's p of N+1 columns, `[B, N]`."""
    log_sigma = torch.zeros(q.states.shape[:2], dtype=torch.float64, device=q.states.device)
    for draft_step, target_step in zip(q.steps[:-1], p.steps[:-1], strict=True):
        if target_step.fixed_std is None or target_step.fixed_std != draft_step.fixed_std:
            log_sigma += draft_step.log_std_product() - target_step.log_std_product()[:, :-1]
    return log_sigma


def sample_residual_with_limit(p: Gaussian, q: Gaussian, log_sigma: Tensor, draws: RejectionDraws) -> Tensor:
    """Return the first of MAX_ATTEMPTS draws of p that passes, `[N, C]` float32.

    Args:
        p (Gaussian): [N, 1, C] last step of the target.
        q (Gaussian): [N, 1, C] last step of the draft.
        log_sigma (Tensor): [N, 1] log Σ.
        draws (RejectionDraws): Noise of the draws.
    """
    proposals, passed = propose(p, q, log_sigma, draws, 0, MAX_ATTEMPTS)
    passed[:, -1] = True
    return batch_gather(proposals, passed.int().argmax(1)[:, None])[:, 0].float()
