"""A drafter that is watched at work: a bench overrides what it wants to see.

method = replace(method, drafter=Watched(method.drafter))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Drafter, Outcome
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Sampler
from polydraft.core.state import State
from polydraft.core.target import Prefill


@dataclass
class Watched:
    """Drafts what `drafter` drafts."""

    drafter: Drafter

    def begin(self, own: Any, seen: Prefill) -> Any:
        return self.drafter.begin(own, seen)

    def draft(self, state: State, own: Any, sampler: Sampler, noise: Noise) -> Draft:
        return self.drafter.draft(state, own, sampler, noise)

    def observe(self, state: State, own: Any, outcome: Outcome) -> None:
        self.drafter.observe(state, own, outcome)
