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
from polydraft.core.drafters.base import Outcome, joined
from polydraft.core.drafters.jacobi.window import Initial, WindowDrafter
from polydraft.core.errors import InvalidArgument
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Sampler
from polydraft.core.rows import Rows
from polydraft.core.state import State
from polydraft.core.suggestions import did_you_mean
from polydraft.core.target import Prefill
from polydraft.core.tokens import take
from polydraft.core.verify.rules import Rule, at, emitted, residual

REFRESHES = ("independent", "maximal")


@dataclass
class Guesses(Rows):
    """The last pass's guesses behind its root, ids `[B, W]`; the first `known` `[B, 1]` places have been judged.

    proposals: `[B, W, V]` log of the laws they were drawn from; laws: `[B, W, V]` log p, what the pass said of their
    places. The last judged place had no guess (`-1`). edge: `[B, V]` log p behind the deepest.
    """

    ids: Tensor
    known: Tensor
    proposals: Tensor
    laws: Tensor
    edge: Tensor


@dataclass
class SJDDrafter(WindowDrafter[Initial]):
    """refresh: how guesses that were not reached follow the laws of their new context."""

    refresh: str = "independent"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refresh not in REFRESHES:
            meant = did_you_mean(self.refresh, REFRESHES)
            raise InvalidArgument(
                f"refresh={self.refresh!r} is unknown{meant}; it must be one of {', '.join(REFRESHES)}."
            )

    def begin(self, own: Guesses | None, seen: Prefill) -> Guesses:
        rows = len(seen.lengths)
        known = torch.zeros(rows, 1, dtype=torch.long, device=seen.lengths.device)
        laws = self.initial.flat.repeat(rows, self.window, 1)
        return joined(own, Guesses(known.repeat(1, self.window) - 1, known, laws, laws.clone(), laws[:, 0].clone()))

    def draft(self, state: State, own: Guesses, sampler: Sampler, noise: Noise) -> Draft:
        """Refreshed guesses, then initial ones."""
        guesses = self.refreshed(own, noise)
        fresh = torch.arange(self.window, device=guesses.device) >= own.known
        filled = self.initial.fill(state, guesses, own.known, own.edge, sampler, noise)
        ids = torch.where(fresh, filled, guesses)
        laws = torch.where(fresh[..., None], self.initial.law(state, filled, own.edge), own.laws)
        if not noise.sampled:
            return Draft.of_chain(ids)
        known = at(laws, ids) > -torch.inf  # not of a place behind which the target's own logits are no numbers
        return Draft.of_chain(ids, known, q=torch.nn.functional.pad(laws, (0, 0, 0, 1)))

    def refreshed(self, own: Guesses, noise: Noise) -> Tensor:
        """`[B, W]`: a draw from every place's new law, coupled with the old guess or not."""
        p, q = own.laws.softmax(-1), own.proposals.softmax(-1)
        greedy = noise.greedy[:, None]
        if self.refresh == "independent":
            return emitted(p, noise.gumbel(self.window), greedy)
        old = own.ids.clamp(min=0)
        kept = (own.ids >= 0) & (noise.uniform(self.window) < at(p, old) / at(q, old)) & ~greedy
        left = torch.where((own.ids >= 0)[..., None], residual(Rule(), None, p, q, old), p)
        left = torch.where(greedy[..., None], p, left)
        return torch.where(kept, old, emitted(left, noise.gumbel(self.window), greedy))

    def observe(self, state: State, own: Guesses, outcome: Outcome) -> None:
        """Shift by what was committed, with what the pass said of every place behind it."""
        draft, law, counts = outcome.draft, outcome.law.logp, outcome.verdict.counts[:, None]
        places = torch.arange(self.window, device=law.device) + counts
        inside = places.clamp(max=self.window - 1)
        own.ids = torch.where(places < self.window, draft.tokens.gather(1, inside), -1)
        if draft.q is not None:
            own.proposals = take(draft.q, inside)
        own.laws = take(law, places.clamp(max=self.window))
        own.known = (self.window + 1 - counts).clamp(min=0)
        own.edge = law[:, -1]
