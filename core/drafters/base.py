"""The seam of drafters, and the simplest of them. A drafter holds weights and settings; what belongs to requests is in
its state, which rows join and leave like any other (`core.rows`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Law, Sampler
from polydraft.core.rows import Rows
from polydraft.core.state import State
from polydraft.core.target import Prefill
from polydraft.core.verdict import Verdict


@dataclass(frozen=True)
class Outcome:
    """What became of a draft: the law at its columns, the target's features `[B, R, N+1, D]`, and the verdict."""

    draft: Draft
    law: Law
    features: Tensor
    verdict: Verdict


class Drafter(Protocol):
    """Guesses what comes next, for any number of requests."""

    def begin(self, own: Any, seen: Prefill) -> Any:
        """The drafter's state with new rows behind those of `own` (None: there were none); seen: their prompts."""

    def draft(self, state: State, own: Any, sampler: Sampler, noise: Noise) -> Draft:
        """Guess what follows the root of every row."""

    def observe(self, state: State, own: Any, outcome: Outcome) -> None:
        """See what became of the draft; `state` has already committed the verdict."""


class Stateless:
    """Mix-in for drafters that read everything from the committed rows."""

    def begin(self, own: Any, seen: Prefill) -> Any:
        return None

    def observe(self, state: State, own: Any, outcome: Outcome) -> None:
        return None


class NoDrafter(Stateless):
    """Plain autoregressive decoding, one token a target pass: the baseline of everything."""

    def draft(self, state: State, own: Any, sampler: Sampler, noise: Noise) -> Draft:
        return Draft.empty(state.tokens)


def joined(own: Any, new: Rows) -> Any:
    """The rows of `new` behind those of `own`, if there were any."""
    if own is None:
        return new
    own.extend(new)
    return own
