"""Continuous speculative decoding as published: lossy, for comparison (CSpD, Wang et al. 2024, arXiv 2411.11925).

Target and draft denoise with the same noise at every step, so that they stay close (trajectory alignment), and the
drafted latent is kept with `min(1, Σ p(x0 | x1) / q(x0 | x1))`, each under its own x1. Σ is the product over the
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
from polydraft.core.continuous.gaussian import Gaussian, draw_proposals
from polydraft.core.draft import Draft
from polydraft.core.sampling.noise import Noise, RejectionDraws
from polydraft.core.tokens import batch_gather, batch_scatter_
from polydraft.core.verification import VerificationResult, accept_to_node

MAX_ATTEMPTS = 100  # proposals for a residual sample; if all are rejected the last one, a sample of p, is taken


@dataclass(frozen=True)
class ContinuousSpeculative:
    """Verifier of continuous speculative decoding (CSpD)."""

    prefill: int = 13  # number of first latents that the target samples alone, without drafts (the paper's pre-filling)

    guarantee = "lossy"
    uses_shared_noise = False

    def verify(
        self, draft: Draft, distribution: LatentDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        """Accept latents with probability min(1, Σ p/q): p and q are the densities of the last denoising steps.

        The first rejected latent is replaced by a sample of the residual max(Σ p - q, 0). The paper's factor Σ is the
        density ratio, target over draft, of all earlier steps: both chains use the same normals there, so it is the
        product of the ratios of standard deviations, draft over target, and 1 if both chains have the same ones.

        Args:
            draft (Draft): Chain of N latents; `q` holds their denoising trajectories.
            distribution (LatentDistribution): The target's, at root and draft nodes, [B, N+1, …].
            noise (Noise): Noise of the batch.
            num_generated (Tensor): [B] latents generated before the draft.
        """
        normals = distribution.draw_normals(noise)
        if not draft.size:  # no draft latents (plain decoding): zero are accepted, the target's sample is committed
            return accept_to_node(draft.valid.sum(1), draft, distribution.sample_trajectory(normals).latents)
        is_finite = draft.q.states.isfinite().all((2, 3))  # over the states and coordinates of every draft latent
        tested = draft.valid & is_finite & (next_positions(num_generated, draft.size) >= self.prefill)  # [B, N]
        # trajectory alignment: where a draft is tested, the target's trajectory is driven by the noise of the draft's
        normals = shared_normals(normals, draft.q, tested, distribution.chain.init_std)
        trajectory = distribution.sample_trajectory(normals)
        p, q = trajectory.step_distributions[-1].first_positions(draft.size), draft.q.step_distributions[-1]
        drafted, log_sigma = draft.q.states[:, :, -1], log_sigma_ratio(draft.q, trajectory)
        log_ratio = log_sigma + p.log_density(drafted) - q.log_density(drafted)
        is_kept = tested & (noise.fresh_uniforms(draft.size).log() < log_ratio)
        num_accepted = is_kept.cumprod(1).sum(1)  # [B] length of the leading run of kept latents
        first_rejected = num_accepted.clamp(max=draft.size - 1)  # any index where all are accepted; not used there
        batch_rows = torch.arange(len(num_generated), device=num_generated.device)
        # a position that was not tested (pre-filling, invalid drafts) keeps the target's own sample
        is_rejected = (num_accepted < draft.size) & tested[batch_rows, first_rejected]
        index = batch_rows, first_rejected
        residual = sample_residual_with_limit(
            p.select(index), q.select(index), log_sigma[index][:, None],
            noise.rejection_draws(draft.size).select(index),
        )  # fmt: skip
        latents = trajectory.latents  # [B, N+1, C] the target's own samples, one after the root and every draft latent
        # the latent after the accepted ones
        bonus = torch.where(is_rejected[:, None], residual, latents[batch_rows, num_accepted])
        batch_scatter_(latents, num_accepted[:, None], bonus[:, None])
        return accept_to_node(num_accepted, draft, latents)


def shared_normals(normals: Tensor, trajectory: SampledTrajectory, shared: Tensor, init_std: float) -> Tensor:
    """Replace the target's noise by the noise of the draft's trajectories, at positions where `shared` is set.

    Args:
        normals (Tensor): [1+T, B, N+1, C] fresh standard normals for the initial state and the T denoising steps of
            latents of C coordinates, at the N draft positions and the one after them.
        trajectory (SampledTrajectory): Trajectories of the N draft latents, from which their noise is recovered.
        shared (Tensor): [B, N] bool, draft positions that get the noise of the draft.
        init_std (float): Standard deviation of the initial state.

    Returns:
        Tensor: [1+T, B, N+1, C]; the last position, which has no draft, keeps its fresh normals.
    """
    draft_normals = [trajectory.states[:, :, 0] / init_std]
    draft_normals += [
        gaussian.to_normals(trajectory.states[:, :, step + 1])
        for step, gaussian in enumerate(trajectory.step_distributions)
    ]
    at_drafted = torch.where(shared[..., None], torch.stack(draft_normals), normals[:, :, :-1])  # [1+T, B, N, C]
    return torch.cat([at_drafted, normals[:, :, -1:]], 2)


def log_sigma_ratio(q: SampledTrajectory, p: SampledTrajectory) -> Tensor:
    """Return log Σ `[B, N]`: the log of a product over all denoising steps but the last, and over all coordinates.

    The factors are the ratios of standard deviations, draft over target. With the same normals in both chains this is
    the density ratio, target over draft, of these steps.

    Args:
        q (SampledTrajectory): Trajectories of the draft at N positions.
        p (SampledTrajectory): Trajectories of the target at these positions and one more, which is ignored.
    """
    log_sigma = torch.zeros(q.states.shape[:2], dtype=torch.float64, device=q.states.device)
    for draft_step, target_step in zip(q.step_distributions[:-1], p.step_distributions[:-1], strict=True):
        # equal fixed standard deviations contribute log 1 = 0; `fixed_std` is None where the head predicts them
        if target_step.fixed_std is None or target_step.fixed_std != draft_step.fixed_std:
            log_sigma += draft_step.log_std_product() - target_step.log_std_product()[:, :-1]
    return log_sigma


def sample_residual_with_limit(p: Gaussian, q: Gaussian, log_sigma: Tensor, draws: RejectionDraws) -> Tensor:
    """Sample the residual max(Σ p - q, 0) by rejection with at most MAX_ATTEMPTS proposals drawn from p.

    Args:
        p (Gaussian): [N, 1, C] last denoising step of the target, for N latents of C coordinates.
        q (Gaussian): [N, 1, C] last denoising step of the draft.
        log_sigma (Tensor): [N, 1] log of the paper's factor Σ: the density ratio, target over draft, of the earlier
            denoising steps (the product of the ratios of standard deviations, draft over target).
        draws (RejectionDraws): [N] noise streams of the proposals.

    Returns:
        Tensor: [N, C] float32 samples: the first accepted proposal, or the last one where all were rejected.
    """
    proposals, is_accepted = draw_proposals(
        p, q, log_sigma, draws, num_previous=0, num_proposals=MAX_ATTEMPTS
    )  # [N, MAX_ATTEMPTS, C] and [N, MAX_ATTEMPTS]
    is_accepted[:, -1] = True  # the limit: the last proposal is taken if no other was accepted
    first_accepted = is_accepted.int().argmax(1)  # argmax returns the first of equal values
    return batch_gather(proposals, first_accepted[:, None])[:, 0].float()
