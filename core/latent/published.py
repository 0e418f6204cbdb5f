"""Continuous speculative decoding as its paper has it: lossy, for comparison (CSpD, Wang et al. 2024, arXiv
2411.11925).

Target and draft walk their chains with the same noise at every step, so that they stay near (trajectory alignment), and
the drafted latent is kept with `min(1, Σ p(x0 | x1) / q(x0 | x1))`, each under its own x1. Σ is the product over the
earlier steps of the ratio of standard deviations, draft over target; chains of fixed noise have Σ = 1. A latent that is
not kept is drawn again from the target's last step until one passes with `[Σp - q]+ / Σp`, and the first latents of a
picture are the target's alone (pre-filling). What it computes is the ratio of two conditional laws at one point of each
chain, not that of the latents' laws, so the result is near the target's law and not of it. The code that its authors
published takes the reciprocal of Σ, divides deviations by 42 in the test and adds no noise in the last step; here is
the formula.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.latent.law import LatentLaw, Walk
from polydraft.core.noise import Noise
from polydraft.core.tokens import put, take
from polydraft.core.verdict import Verdict, follow

TRIES = 100  # draws of a residual; where none passes the last stands, the target's own


@dataclass(frozen=True)
class ContinuousSpeculative:
    """prefill: latents at the beginning that the target draws alone."""

    prefill: int = 13

    guarantee = "lossy"
    needs_q = True
    chains_only = True
    on_tape = False

    def verify(self, draft: Draft, law: LatentLaw, noise: Noise, t: Tensor) -> Verdict:
        own = law.walked(law.normals(noise)).latents  # `[B, N+1, C]`, what the target draws where nothing is kept
        if not draft.size:
            return follow(draft.valid.sum(1), draft, own)
        sigma, drafted = law.deviation(law.steps - 1), draft.q.means[:, :, -1]
        mean = aligned(law, draft.q)
        ratio = log_density(draft.tokens, mean, sigma) - log_density(draft.tokens, drafted, sigma)
        kept = draft.valid & (noise.uniform(draft.size).log() < ratio)
        kept = kept & (t[:, None] + torch.arange(draft.size, device=t.device) >= self.prefill)
        accepted = kept.cumprod(1).sum(1)
        failed = accepted.clamp(max=draft.size - 1)[:, None]
        tried = (accepted < draft.size) & (t + accepted >= self.prefill)  # elsewhere nothing was refused
        again = residual(take(mean, failed), take(drafted, failed), sigma, noise)
        own = own.clone()
        put(own, accepted[:, None], torch.where(tried[:, None, None], again, take(own, accepted[:, None])))
        return follow(accepted, draft, own)


def aligned(law: LatentLaw, walk: Walk) -> Tensor:
    """`[B, N, C]`: the mean of the target's last step, its chain driven by the noise of `walk`."""
    nodes = LatentLaw(law.chain, law.given[:, :-1], law.scale, law.temperature)
    x = walk.states[:, :, 0]
    for step in range(law.steps - 1):
        x = nodes.mean(x, step) + (walk.states[:, :, step + 1] - walk.means[:, :, step])
    return nodes.mean(x, law.steps - 1)


def log_density(x: Tensor, mean: Tensor, sigma: Tensor) -> Tensor:
    """Of N(mean, σ²) at x `[B, N, C]`, but for a constant; `[B, N]`."""
    return -((x - mean) / sigma).square().sum(-1) / 2


def residual(mean: Tensor, drafted: Tensor, sigma: Tensor, noise: Noise) -> Tensor:
    """`[B, 1, C]` fp32: the first of many draws of N(mean, σ²) that `[p - q]+ / p` lets pass; means `[B, 1, C]`."""
    drawn = mean + sigma * noise.normal(TRIES, mean.shape[2])
    chance = 1 - (log_density(drawn, drafted, sigma) - log_density(drawn, mean, sigma)).exp()
    passed = noise.uniform(TRIES) < chance
    passed[:, -1] = True
    return take(drawn, passed.int().argmax(1)[:, None]).float()
