"""A drafter that is watched at work: a bench overrides what it wants to see.

method = replace(method, drafter=Watched(method.drafter))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Drafter, DraftOutcome
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState


@dataclass
class ObservedDrafter:
    """Drafts what `drafter` drafts."""

    drafter: Drafter

    def begin(self, drafter_state: Any, seen: PrefillOutput) -> Any:
        return self.drafter.begin(drafter_state, seen)

    def draft(self, state: BatchState, drafter_state: Any, sampler: Sampler, noise: Noise) -> Draft:
        return self.drafter.draft(state, drafter_state, sampler, noise)

    def observe(self, state: BatchState, drafter_state: Any, outcome: DraftOutcome) -> None:
        self.drafter.observe(state, drafter_state, outcome)
