"""Coupled verification of latents: exact at any number of coordinates, step by step along the denoising chain.

While the draft's chain and the target's are at the same x, the target takes the draft's next x as often as any coupling
of the two steps can, and continues alone from where it does not (`gaussian.sample_maximal_coupling`; De Bortoli et al.
2025, arXiv 2501.05370, for drafts of diffusion models). Either way the target's x is an exact draw of its own chain, so
a latent is accepted if the two chains still agree at its end, and otherwise the target's own takes its place. A step
without noise moves to the target's mean, and keeps only what is equal to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.continuous.denoising import LatentDistribution
from polydraft.core.continuous.gaussian import sample_maximal_coupling
from polydraft.core.draft import Draft
from polydraft.core.sampling.noise import Noise
from polydraft.core.verification import VerificationResult, accept_to_node


@dataclass(frozen=True)
class CoupledVerifier:
    """Verifier by a maximal coupling of every step; drafts, uniforms and corrections use the fresh noise stream."""

    guarantee = "exact"
    uses_shared_noise = False

    def verify(
        self, draft: Draft, distribution: LatentDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        """Accept latents whose chain ends where the target's coupled chain ends."""
        if not draft.size:
            trajectory = distribution.sample_trajectory(distribution.draw_normals(noise))
            return accept_to_node(draft.valid.sum(1), draft, trajectory.latents)
        *_, (latents, agrees) = coupled_chains(distribution, noise, draft)
        return accept_to_node(agrees.cumprod(1).sum(1), draft, latents.float())


def coupled_chains(distribution: LatentDistribution, noise: Noise, draft: Draft) -> Iterator[tuple[Tensor, Tensor]]:
    """Run the target's chains at every column, coupled with the draft's.

    Args:
        distribution (LatentDistribution): Target distribution at the N+1 columns of the draft.
        noise (Noise): Noise of the batch.
        draft (Draft): Draft of N latents with its trajectories.

    Yields:
        tuple[Tensor, Tensor]: after every step the target's states [B, N+1, C], and a mask [B, N] of columns where they
            still are the draft's.
    """
    normals = distribution.draw_normals(noise)  # for chains without a draft, or that have parted from it
    states, agrees = draft.q.states, draft.valid
    x = torch.cat([states[:, :, 0], normals[0, :, -1:] * distribution.chain.init_std], 1)
    for step, draft_step in enumerate(draft.q.steps):
        target_step = distribution.step(x, step)
        independent = target_step.from_normals(normals[1 + step])
        agrees = agrees & draft_step.is_finite()
        coupled, kept = sample_maximal_coupling(
            states[:, :, step + 1], draft_step, target_step.first_columns(draft.size), agrees, noise
        )
        drafted = torch.where(agrees[..., None], coupled, independent[:, :-1])
        x = torch.cat([drafted, independent[:, -1:]], 1)
        agrees = agrees & kept
        yield x, agrees
