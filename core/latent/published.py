"""Continuous speculative decoding as its paper has it: lossy, for comparison (CSpD, Wang et al. 2024, arXiv
2411.11925).

Target and draft walk their chains with the same noise at every step, so that they stay near (trajectory alignment), and
the drafted latent is kept with `min(1, Σ p(x0 | x1) / q(x0 | x1))`, each under its own x1. Σ is the product over the
earlier steps of the ratio of standard deviations, draft over target; chains of fixed noise have Σ = 1. A latent that is
not kept is drawn again from the target's last step until one passes with `[Σp - q]+ / Σp`, and the first latents of a
picture are the target's alone (pre-filling). Where Σ is 1 that is a coupling of two last steps, each behind a draw of
its own chain, and keeps the law but for the end of trying; where it is not, the factor makes of it what is near the
target's law and not of it. The code that its authors published takes the reciprocal of Σ, divides deviations by 42 in
the test and adds no noise in the last step; here is the formula.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.latent.gaussian import Gaussian, proposed
from polydraft.core.latent.law import LatentLaw, Walk
from polydraft.core.law.noise import Noise, Tries
from polydraft.core.rows import following
from polydraft.core.tokens import put, take
from polydraft.core.verdict import Verdict, follow

TRIES = 100  # draws of a residual; where none passes the last stands, the target's own


@dataclass(frozen=True)
class ContinuousSpeculative:
    """prefill: latents at the beginning that the target draws alone."""

    prefill: int = 13

    guarantee = "lossy"
    on_tape = False

    def verify(self, draft: Draft, law: LatentLaw, noise: Noise, t: Tensor) -> Verdict:
        normals = law.normals(noise)
        if not draft.size:
            return follow(draft.valid.sum(1), draft, law.walked(normals).latents)
        due = draft.valid & draft.q.states.isfinite().all((2, 3)) & (following(t, draft.size) >= self.prefill)
        walk = law.walked(driven(normals, draft.q, due, law.chain.start))
        p, q = walk.steps[-1].upto(draft.size), draft.q.steps[-1]
        drafted, lift = draft.q.states[:, :, -1], lifted(draft.q, walk)
        log_ratio = lift + p.log_density(drafted) - q.log_density(drafted)
        kept = due & (noise.uniform(draft.size).log() < log_ratio)
        accepted = kept.cumprod(1).sum(1)
        failed = accepted.clamp(max=draft.size - 1)
        lines = torch.arange(len(t), device=t.device)
        tried = (accepted < draft.size) & due[lines, failed]  # elsewhere nothing was refused
        at = lines, failed
        again = capped(p.at(at), q.at(at), lift[at][:, None], noise.tries(draft.size).at(at))
        own = walk.latents  # `[B, N+1, C]`, what the target draws where nothing was refused
        put(own, accepted[:, None], torch.where(tried[:, None], again, own[lines, accepted])[:, None])
        return follow(accepted, draft, own)


def driven(normals: Tensor, walk: Walk, due: Tensor, start: float) -> Tensor:
    """Normals `[1+T, B, N+1, C]` with those that drove `walk` where `due` `[B, N]` holds."""
    theirs = [walk.states[:, :, 0] / start]
    theirs += [law.normals(walk.states[:, :, step + 1]) for step, law in enumerate(walk.steps)]
    nodes = torch.where(due[..., None], torch.stack(theirs), normals[:, :, :-1])
    return torch.cat([nodes, normals[:, :, -1:]], 2)


def lifted(q: Walk, p: Walk) -> Tensor:
    """`[B, N]`: log Σ, of what drafts had, `[B, N]`, and the target's, `[B, N+1]`."""
    log_sigma = torch.zeros(q.states.shape[:2], dtype=torch.float64, device=q.states.device)
    for drafted, own in zip(q.steps[:-1], p.steps[:-1], strict=True):
        if own.level is None or own.level != drafted.level:
            log_sigma += drafted.log_spread() - own.log_spread()[:, :-1]
    return log_sigma


def capped(p: Gaussian, q: Gaussian, lift: Tensor, tries: Tries) -> Tensor:
    """`[N, C]` fp32: the first of TRIES draws of p that passes; p, q: `[N, 1, C]`, lift: `[N, 1]`."""
    drawn, passed = proposed(p, q, lift, tries, 0, TRIES)
    passed[:, -1] = True
    return take(drawn, passed.int().argmax(1)[:, None])[:, 0].float()
