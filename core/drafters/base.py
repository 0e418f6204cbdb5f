"""Interface of drafters, and the simplest of them.

A drafter holds weights and settings. What belongs to single requests is in its state, which rows are added to and
removed from like any other state (`core.batched_state`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from polydraft.core.batched_state import BatchedState
from polydraft.core.draft import Draft
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler, TokenDistribution
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState
from polydraft.core.verification import VerificationResult


@dataclass(frozen=True)
class DraftOutcome:
    """Draft after its verification."""

    draft: Draft
    distribution: TokenDistribution  # target distribution at every column
    hidden_states: Tensor  # [B, R, N+1, D] target hidden states at every column
    verification: VerificationResult


class Drafter(Protocol):
    """Proposes draft tokens for a batch of sequences."""

    def begin(self, drafter_state: Any, prompts: PrefillOutput) -> Any:
        """Add rows for new sequences to the drafter's state.

        Args:
            drafter_state (Any): State of the rows so far; None if there are none.
            prompts (PrefillOutput): What the target computed for the prompts of the new rows.

        Returns:
            Any: State of all rows; new ones are at the end.
        """

    def draft(self, state: BatchState, drafter_state: Any, sampler: Sampler, noise: Noise) -> Draft:
        """Return a draft of what follows the root of every row."""

    def observe(self, state: BatchState, drafter_state: Any, outcome: DraftOutcome) -> None:
        """Update the drafter's state after verification; `state` has already committed the accepted tokens."""


class StatelessDrafter:
    """Mix-in for drafters that depend on the committed tokens alone."""

    def begin(self, drafter_state: Any, prompts: PrefillOutput) -> Any:
        return None

    def observe(self, state: BatchState, drafter_state: Any, outcome: DraftOutcome) -> None:
        return None


class NoDrafter(StatelessDrafter):
    """Plain autoregressive decoding, one token per target pass: the baseline of every comparison."""

    def draft(self, state: BatchState, drafter_state: Any, sampler: Sampler, noise: Noise) -> Draft:
        return Draft.empty(state.tokens)


def extend_state(drafter_state: Any, new: BatchedState) -> Any:
    """Append the rows of `new` to `drafter_state`, if there is one, and return the state of all rows."""
    if drafter_state is None:
        return new
    drafter_state.append_rows(new)
    return drafter_state
