"""A drafter that is watched at work: a bench overrides what it wants to see.

method = replace(method, drafter=ObservedDrafter(method.drafter))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Drafter, DraftOutcome, Learner, MissedTokens, PassCost
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState


@dataclass
class ObservedDrafter(Drafter):
    """Drafter that delegates everything to another."""

    drafter: Drafter

    def __post_init__(self) -> None:
        self.follows_hidden_states: bool = self.drafter.follows_hidden_states
        self.follows_outputs: bool = self.drafter.follows_outputs

    def begin(self, drafter_state: Any, prompts: PrefillOutput) -> Any:
        return self.drafter.begin(drafter_state, prompts)

    def draft(self, state: BatchState, drafter_state: Any, sampler: Sampler, noise: Noise) -> Draft:
        return self.drafter.draft(state, drafter_state, sampler, noise)

    def observe(self, state: BatchState, drafter_state: Any, outcome: DraftOutcome) -> None:
        self.drafter.observe(state, drafter_state, outcome)

    def prepare(self, state: BatchState, drafter_state: Any) -> None:
        self.drafter.prepare(state, drafter_state)

    def record(self, drafter_state: Any, cost: PassCost) -> None:
        self.drafter.record(drafter_state, cost)

    def learners(self) -> Sequence[Learner]:
        return self.drafter.learners()

    def catch_up(self, state: BatchState, drafter_state: Any, missed: MissedTokens) -> None:
        self.drafter.catch_up(state, drafter_state, missed)

    def finish(self, prompt_end: Sequence[int], tokens: Sequence[Any]) -> None:
        self.drafter.finish(prompt_end, tokens)

    def active_name(self, drafter_state: Any) -> str:
        return self.drafter.active_name(drafter_state)
