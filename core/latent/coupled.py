"""Coupled verification of latents: exact at any number of coordinates, step by step along the denoising chain.

While the draft's chain and the target's are at the same x, the draft's next x = μ_q + σ z is kept with probability
min(1, p/q); otherwise z is reflected at the plane between the two means, and the target goes on from there alone
(Bou-Rabee, Eberle and Zimmer 2020, "Coupling and convergence for Hamiltonian Monte Carlo", section 2.3, for the
coupling; De Bortoli et al. 2025, arXiv 2501.05370, for drafts of diffusion models). Either way the target's x is an
exact draw of its own chain, so a latent is accepted where the two chains still agree at its end, and elsewhere the
target's own takes its place. Both steps need the same variance. A step without noise goes where the target's mean is,
and keeps only what is equal to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.latent.law import LatentLaw
from polydraft.core.noise import Noise
from polydraft.core.tokens import same
from polydraft.core.verdict import Verdict, follow


@dataclass(frozen=True)
class CoupledVerifier:
    """Reflection-maximal coupling of every step; drafts, uniforms and reflections are of the second stream."""

    guarantee = "exact"
    needs_q = True
    chains_only = True
    on_tape = False

    def verify(self, draft: Draft, law: LatentLaw, noise: Noise, t: Tensor) -> Verdict:
        if not draft.size:
            return follow(draft.valid.sum(1), draft, law.walked(law.normals(noise)).latents)
        *_, (latents, agrees) = beside(law, noise, draft)
        return follow((agrees & draft.valid).cumprod(1).sum(1), draft, latents.float())


def beside(law: LatentLaw, noise: Noise, draft: Draft) -> Iterator[tuple[Tensor, Tensor]]:
    """The target's chains at every column, coupled with the draft's where there is one, after every step.

    Its own states `[B, N+1, C]`, and which of the first N still are the draft's, `[B, N]` bool.
    """
    alone = law.normals(noise)  # what a chain draws that nobody drafted, or that has parted
    states, means = draft.q.states, draft.q.means
    agrees = torch.ones_like(draft.valid)
    x = torch.cat([states[:, :, 0], alone[0, :, -1:] * law.chain.start], 1)
    for step in range(law.steps):
        mean, sigma = law.mean(x, step), law.deviation(step)
        on = mean + sigma * alone[1 + step]
        y, own = states[:, :, step + 1], mean[:, :-1]
        noisy = law.chain.deviations[step] > 0
        drafted, kept = coupled(y, means[:, :, step], own, sigma, noise) if noisy else (own, same(y, own))
        x = torch.cat([torch.where(agrees[..., None], drafted, on[:, :-1]), on[:, -1:]], 1)
        agrees = agrees & kept
        yield x, agrees


def coupled(y: Tensor, drafted: Tensor, mean: Tensor, sigma: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """A draw of N(mean, σ²) `[B, N, C]` that is y, a draw of N(drafted, σ²), as often as any can; and where it is."""
    z, apart = (y - drafted) / sigma, (drafted - mean) / sigma
    log_ratio = -(z * apart).sum(-1) - apart.square().sum(-1) / 2
    kept = noise.uniform(y.shape[1]).log() < log_ratio
    length = apart.square().sum(-1, keepdim=True)
    along = (z * apart).sum(-1, keepdim=True) / length.clamp(min=torch.finfo(length.dtype).tiny)
    reflected = mean + sigma * (z - 2 * along * apart)
    return torch.where(kept[..., None], y, reflected), kept
