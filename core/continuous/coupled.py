"""Coupled verification of latents: exact at any number of coordinates, step by step along the denoising trajectory.

While the draft's trajectory and the target's are at the same x, the target takes the draft's next x as often as any
coupling of the two steps can, and continues alone from where it does not (`gaussian.sample_maximal_coupling`; De
Bortoli et al. 2025, arXiv 2501.05370, for drafts of diffusion models). Either way the target's x is an exact draw of
its own chain, so a latent is accepted if the two trajectories still agree at its end, and otherwise the target's own
takes its place. A step without noise moves to the target's mean, and keeps only what is equal to it.
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
    """Verifier of latents by a maximal coupling of every denoising step of draft and target.

    Drafts, acceptance tests and corrections use fresh noise, never the position-keyed noise that a drafter could share.
    """

    guarantee = "exact"
    uses_shared_noise = False

    def verify(
        self, draft: Draft, distribution: LatentDistribution, noise: Noise, num_generated: Tensor
    ) -> VerificationResult:
        """Accept the longest prefix of draft latents at which the target's coupled trajectory ends in the same latent.

        Args:
            draft (Draft): Chain of N latents; `q` holds their denoising trajectories.
            distribution (LatentDistribution): The target's, at root and draft nodes, [B, N+1, …].
            noise (Noise): Noise of the batch.
            num_generated (Tensor): [B] tokens generated before the draft; not used.
        """
        if not draft.size:  # no draft latents (plain decoding): zero are accepted, the target's sample is committed
            trajectory = distribution.sample_trajectory(distribution.draw_normals(noise))
            return accept_to_node(draft.valid.sum(1), draft, trajectory.latents)
        *_, (latents, agrees) = coupled_trajectories(distribution, noise, draft)  # after the last denoising step
        num_accepted = agrees.cumprod(1).sum(1)  # [B] length of the leading run of equal latents
        return accept_to_node(num_accepted, draft, latents.float())


def coupled_trajectories(
    distribution: LatentDistribution, noise: Noise, draft: Draft
) -> Iterator[tuple[Tensor, Tensor]]:
    """Run the target's denoising trajectories at root and draft nodes, coupled with those of the draft.

    A trajectory of the target starts at the draft's initial state. At every step it takes the draft's next state if a
    maximal coupling of the two step distributions keeps it, and leaves the draft's trajectory for good otherwise.

    Args:
        distribution (LatentDistribution): Target distribution at the N+1 positions that root and draft nodes predict.
        noise (Noise): Noise of the batch.
        draft (Draft): Draft of N latents; `q` holds their denoising trajectories.

    Yields:
        tuple[Tensor, Tensor]: after each of the T denoising steps the target's states [B, N+1, C], C coordinates each,
            and a mask [B, N] of positions where they still equal the draft's.
    """
    # normals [1 + T, B, N+1, C] drive the last position, which has no draft, and trajectories that left the draft's
    normals = distribution.draw_normals(noise)
    states, agrees = draft.q.states, draft.valid  # [B, N, T+1, C], [B, N]
    x = torch.cat([states[:, :, 0], normals[0, :, -1:] * distribution.chain.init_std], 1)
    for step, draft_step in enumerate(draft.q.step_distributions):
        target_step = distribution.step_distribution(x, step)
        independent = target_step.from_normals(normals[1 + step])  # samples without coupling, [B, N+1, C]
        agrees = agrees & draft_step.is_finite()  # broken numbers of a drafter must never be accepted
        coupled, is_kept = sample_maximal_coupling(
            states[:, :, step + 1], draft_step, target_step.first_positions(draft.size), agrees, noise
        )
        at_drafted = torch.where(agrees[..., None], coupled, independent[:, :-1])  # [B, N, C]
        x = torch.cat([at_drafted, independent[:, -1:]], 1)  # [B, N+1, C]
        agrees = agrees & is_kept
        yield x, agrees
