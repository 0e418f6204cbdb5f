"""Recursive rejection: the children of a node are tested in the order they were drawn, each against what is left of p.

Exact for children sampled from q with or without replacement (Miao et al. 2024, SpecInfer, arXiv 2305.09781; Jeon et
al. 2024, arXiv 2402.14160); a deterministic child is one whose q is one-hot. Children that were sampled and dropped
again (a re-ranked tree) break it. With a lossy rule it is how LANTERN walks a tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Law
from polydraft.core.verdict import Verdict, follow
from polydraft.core.verify.rules import Rule, chance, emitted, judged_law, normalised, one_hot, residual


@dataclass(frozen=True)
class RecursiveRejection:
    """replacement: whether siblings were drawn with replacement, so that q stays as it is after a rejection."""

    rule: Rule = Rule()
    rigid: Tensor | None = field(default=None, repr=False)
    replacement: bool = False

    on_tape = False

    @property
    def guarantee(self) -> str:
        return "exact" if self.rule.exact else "lossy"

    def verify(self, draft: Draft, law: Law, noise: Noise, t: Tensor) -> Verdict:
        """One look at every node in order; parents come before children, and siblings as they were drawn."""
        p = judged_law(self.rule, law)
        q = None if draft.q is None else draft.q.exp()
        u = noise.uniform(draft.size)
        rows = torch.arange(len(p), device=p.device)
        here = torch.zeros_like(rows)  # the column every row stands at
        left, drawn = p[:, 0], None if q is None else q[:, 0]
        for node in range(draft.size):
            x, tested = draft.tokens[:, node], draft.valid[:, node] & (draft.parents[:, node] + 1 == here)
            law_of_x = one_hot(x, left) if drawn is None else drawn
            depth = draft.depth[:, node + 1] - 1
            kept = tested & (u[:, node] < chance(self.rule, self.rigid, left, law_of_x, x, depth, noise.greedy))
            rejected = (tested & ~kept)[:, None]
            left = torch.where(rejected, residual(self.rule, self.rigid, left, law_of_x, depth[:, None]), left)
            if drawn is not None and not self.replacement:
                without = normalised(drawn * (1 - one_hot(x, drawn)), drawn)
                drawn = torch.where(rejected, without, drawn)
            here = torch.where(kept, node + 1, here)
            left = torch.where(kept[:, None], p[rows, here], left)
            drawn = None if drawn is None or q is None else torch.where(kept[:, None], q[rows, here], drawn)
        left = torch.where(noise.greedy[:, None], p[rows, here], left)
        token = emitted(left, noise.gumbel(1)[:, 0], noise.greedy)
        choices = torch.zeros_like(draft.depth).scatter_(1, here[:, None], token[:, None])
        return follow(here, draft, choices)
