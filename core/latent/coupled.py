"""Coupled verification of latents: exact at any number of coordinates, step by step along the denoising chain.

While the draft's chain and the target's are at the same x, the target takes the draft's next x as often as any coupling
of the two steps can, and goes on alone from where it does not (`gaussian.coupled`; De Bortoli et al. 2025, arXiv
2501.05370, for drafts of diffusion models). Either way the target's x is an exact draw of its own chain, so a latent is
accepted where the two chains still agree at its end, and elsewhere the target's own takes its place. A step without
noise goes where the target's mean is, and keeps only what is equal to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.latent.gaussian import coupled
from polydraft.core.latent.law import LatentLaw
from polydraft.core.law.noise import Noise
from polydraft.core.verdict import Verdict, follow


@dataclass(frozen=True)
class CoupledVerifier:
    """A maximal coupling of every step; drafts, uniforms and corrections are of the second stream."""

    guarantee = "exact"
    on_tape = False

    def verify(self, draft: Draft, law: LatentLaw, noise: Noise, t: Tensor) -> Verdict:
        if not draft.size:
            return follow(draft.valid.sum(1), draft, law.walked(law.normals(noise)).latents)
        *_, (latents, agrees) = beside(law, noise, draft)
        return follow(agrees.cumprod(1).sum(1), draft, latents.float())


def beside(law: LatentLaw, noise: Noise, draft: Draft) -> Iterator[tuple[Tensor, Tensor]]:
    """The target's chains at every column, coupled with the draft's where there is one, after every step.

    Its own states `[B, N+1, C]`, and which of the first N still are the draft's, `[B, N]` bool.
    """
    alone = law.normals(noise)  # what a chain draws that nobody drafted, or that has parted
    states, agrees = draft.q.states, draft.valid
    x = torch.cat([states[:, :, 0], alone[0, :, -1:] * law.chain.start], 1)
    for step, drafted in enumerate(draft.q.steps):
        own = law.step(x, step)
        on = own.drawn(alone[1 + step])
        agrees = agrees & drafted.is_law()
        taken, kept = coupled(states[:, :, step + 1], drafted, own.upto(draft.size), agrees, noise)
        x = torch.cat([torch.where(agrees[..., None], taken, on[:, :-1]), on[:, -1:]], 1)
        agrees = agrees & kept
        yield x, agrees
