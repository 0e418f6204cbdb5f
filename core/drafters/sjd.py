"""Speculative Jacobi decoding as published: guesses are kept with the law they were drawn from, for a ratio test.

Every pass draws the guesses behind the accepted run afresh (Teng et al. 2024, arXiv 2410.01699, section 4.1), or keeps
each with probability min(1, p/q) and else draws what p has over q, a maximal coupling of two passes. A guess that is
kept is a draw from p then, so p is the law it is judged with next.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Judged
from polydraft.core.drafters.window import WindowDrafter
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling import Sampler
from polydraft.core.state import State
from polydraft.core.stream import SecondStream
from polydraft.core.target import Prefill, Prompt
from polydraft.core.verify.rules import Rule, at, emitted, residual

REFRESHES = ("independent", "maximal")


@dataclass
class Guesses:
    """The last pass's guesses behind its root, ids `[B, W]`; the first `known[b]` places have been judged.

    proposals: `[B, W, V]` log of the laws they were drawn from; laws: `[B, W, V]` log p, what the pass said of their
    places. The last judged place had no guess (`-1`). edge: `[B, V]` log p behind the deepest.
    """

    ids: Tensor
    known: Tensor
    proposals: Tensor
    laws: Tensor
    edge: Tensor | None = None


@dataclass
class SJDDrafter(WindowDrafter):
    """refresh: how guesses that were not reached follow the laws of their new context."""

    refresh: str = "independent"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refresh not in REFRESHES:
            raise InvalidArgument(f"refresh={self.refresh!r} is unknown; it must be one of {', '.join(REFRESHES)}.")

    def begin(self, prompts: list[Prompt], seen: Prefill) -> Guesses:
        known = torch.zeros(len(prompts), 1, dtype=torch.long, device=seen.features.device)
        laws = self.initial.flat.expand(len(prompts), self.window, -1)
        return Guesses(known.expand(-1, self.window) - 1, known, laws, laws)

    def draft(self, state: State, drafts: Guesses, sampler: Sampler, noise: SecondStream) -> Draft:
        """Refreshed guesses, then initial ones."""
        guesses = self.refreshed(drafts, noise)
        fresh = torch.arange(self.window, device=guesses.device) >= drafts.known
        filled = self.initial.fill(state, guesses, drafts.known, drafts.edge, noise)
        ids = torch.where(fresh, filled, guesses)
        laws = torch.where(fresh[..., None], self.initial.law(filled, drafts.edge), drafts.laws)
        q = None if noise.greedy else torch.nn.functional.pad(laws, (0, 0, 0, 1))
        return Draft.of_chain(ids, q=q)

    def refreshed(self, drafts: Guesses, noise: SecondStream) -> Tensor:
        """`[B, W]`: a draw from every place's new law, coupled with the old guess or not."""
        p, q = drafts.laws.softmax(-1), drafts.proposals.softmax(-1)
        if self.refresh == "independent" or noise.greedy:
            return emitted(p, noise.gumbel(self.window), noise.greedy)
        old = drafts.ids.clamp(min=0)
        kept = (drafts.ids >= 0) & (noise.uniform(self.window) < at(p, old) / at(q, old))
        left = torch.where((drafts.ids >= 0)[..., None], residual(Rule(), None, p, q, old), p)
        return torch.where(kept, old, emitted(left, noise.gumbel(self.window), noise.greedy))

    def observe(self, state: State, drafts: Guesses, judged: Judged) -> None:
        """Shift by what was committed, with what the pass said of every place behind it."""
        draft, law = judged.draft, judged.law
        counts = torch.tensor(judged.verdict.counts, device=law.device)[:, None]
        places = torch.arange(self.window, device=law.device) + counts
        inside = places.clamp(max=self.window - 1)
        drafts.ids = torch.where(places < self.window, draft.tokens.gather(1, inside), -1)
        if draft.q is not None:
            drafts.proposals = draft.q.gather(1, inside[..., None].expand(-1, -1, law.shape[-1]))
        drafts.laws = law.gather(1, places.clamp(max=self.window)[..., None].expand(-1, -1, law.shape[-1]))
        drafts.known = (self.window + 1 - counts).clamp(min=0)
        drafts.edge = law[:, -1]
