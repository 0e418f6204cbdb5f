"""Verifiers of chains off the tape: speculative sampling under any rule, and block verification.

Drafts, uniforms and residuals come from the second stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Law
from polydraft.core.verdict import Verdict, follow
from polydraft.core.verify.rules import Rule, at, chance, emitted, judged_law, normalised, one_hot, residual


def proposal(draft: Draft, p: Tensor) -> Tensor:
    """q behind every node, `[B, N, V]`: what the draft carries, else one-hot."""
    return one_hot(draft.tokens, p[:, 1:]) if draft.q is None else draft.q[:, : draft.size].exp()


def ending(draft: Draft, accepted: Tensor, law: Tensor, noise: Noise) -> Verdict:
    """Accept `accepted` `[B]` nodes and emit a draw from `law` `[B, V]`."""
    return closing(draft, accepted, emitted(law, noise.gumbel(1)[:, 0], noise.greedy))


def closing(draft: Draft, accepted: Tensor, token: Tensor) -> Verdict:
    """Accept `accepted` `[B]` nodes and emit `token` `[B]`."""
    choices = torch.zeros_like(draft.depth).scatter_(1, accepted[:, None], token[:, None])
    return follow(accepted, draft, choices)


def column(law: Tensor, index: Tensor) -> Tensor:
    """law `[B, C, V]` at column `index` `[B]` → `[B, V]`."""
    return law[torch.arange(len(law), device=law.device), index]


@dataclass(frozen=True)
class SpeculativeSampling:
    """Accept while u < f(x); at the first rejection emit from the residual, else a bonus token from p.

    Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318), algorithm 2.
    """

    rule: Rule = Rule()
    rigid: Tensor | None = field(default=None, repr=False)

    on_tape = False

    @property
    def guarantee(self) -> str:
        return "exact" if self.rule.exact else "lossy"

    def verify(self, draft: Draft, law: Law, noise: Noise, t: Tensor) -> Verdict:
        p = judged_law(self.rule, law)
        if draft.size == 0:
            return ending(draft, torch.zeros(len(p), dtype=torch.long, device=p.device), p[:, 0], noise)
        q, depth = proposal(draft, p), draft.depth[:, 1:] - 1
        judged = self.rule.target(p[:, :-1], q)
        f = chance(self.rule, self.rigid, judged, q, draft.tokens, depth, noise.greedy[:, None])
        kept = draft.valid & (noise.uniform(draft.size) < f)
        accepted = kept.cumprod(1).sum(1)
        failed = accepted.clamp(max=draft.size - 1)
        left = residual(self.rule, self.rigid, column(judged, failed), column(q, failed), failed[:, None])
        rejected = (accepted < draft.size) & draft.valid.gather(1, failed[:, None])[:, 0]
        rejected = rejected & ~noise.greedy  # there the correction is the argmax
        return ending(draft, accepted, torch.where(rejected[:, None], left, column(p, accepted)), noise)


@dataclass(frozen=True)
class BlockVerification:
    """Judge the whole chain at once; exact and never worse than token by token (Sun et al. 2024, arXiv 2403.10444)."""

    on_tape = False
    guarantee = "exact"

    def verify(self, draft: Draft, law: Law, noise: Noise, t: Tensor) -> Verdict:
        p = judged_law(Rule(), law)
        if draft.size == 0:
            return ending(draft, torch.zeros(len(p), dtype=torch.long, device=p.device), p[:, 0], noise)
        q = proposal(draft, p)
        ends = draft.valid.cumprod(1).sum(1)  # rows may have shorter drafts
        weight = weights(p, q, draft)  # [B, N + 1], π_0 … π_N
        left = (weight[:, :-1, None] * p[:, :-1] - q).clamp(min=0)  # behind node i, i < N
        mass = left.sum(-1)
        rest = mass + 1 - weight[:, :-1]
        h = torch.where(rest > 0, mass / rest.clamp(min=torch.finfo(p.dtype).tiny), 1.0)
        h = torch.nn.functional.pad(h, (0, 1))
        places = torch.arange(draft.size + 1, device=p.device)
        h = torch.where(places == ends[:, None], weight, torch.where(places < ends[:, None], h, 0))
        passed = noise.uniform(draft.size + 1) <= h
        accepted = furthest(passed)
        residuals = normalised(torch.nn.functional.pad(left, (0, 0, 0, 1)), p)
        whole = (accepted == ends)[:, None]
        return ending(draft, accepted, torch.where(whole, column(p, accepted), column(residuals, accepted)), noise)


def furthest(passed: Tensor) -> Tensor:
    """The largest index that passed `[B, N + 1]`, whatever failed before it; 0 if none."""
    return torch.where(passed, torch.arange(passed.shape[1], device=passed.device), 0).amax(1)


def weights(p: Tensor, q: Tensor, draft: Draft) -> Tensor:
    """π_i = min(1, π_(i-1) p(x_i) / q(x_i)), `[B, N + 1]`."""
    steps = at(p[:, :-1], draft.tokens) / at(q, draft.tokens)
    found = [torch.ones_like(steps[:, 0])]
    for index in range(draft.size):
        found.append((found[-1] * steps[:, index]).clamp(max=1))
    return torch.stack(found, 1)
