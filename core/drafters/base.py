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
    distribution: TokenDistribution  # target distribution at the root and every node
    hidden_states: Tensor  # [B, R, N+1, D] target hidden states at the root and every node, per guidance branch
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
        """Return a draft of the tokens after the last committed one (the root) of every sequence.

        Args:
            state (BatchState): Committed state of the target.
            drafter_state (Any): State that `begin` returned; may be updated.
            sampler (Sampler): Sampler of the target, whose token constraints also apply to drafts.
            noise (Noise): Random numbers of the sequences.
        """

    def observe(self, state: BatchState, drafter_state: Any, outcome: DraftOutcome) -> None:
        """Update `drafter_state` in place after a verification.

        Args:
            state (BatchState): State of the target, with the accepted tokens already committed.
            drafter_state (Any): State that `begin` returned.
            outcome (DraftOutcome): The last draft and its verification.
        """


class StatelessDrafter:
    """Mix-in for drafters that depend on the committed tokens alone."""

    def begin(self, drafter_state: Any, prompts: PrefillOutput) -> Any:
        """Return None: there is no state."""
        return None

    def observe(self, state: BatchState, drafter_state: Any, outcome: DraftOutcome) -> None:
        """Do nothing: there is no state."""
        return None


class NoDrafter(StatelessDrafter):
    """Plain autoregressive decoding, one token per target pass: the baseline of every comparison."""

    def draft(self, state: BatchState, drafter_state: Any, sampler: Sampler, noise: Noise) -> Draft:
        """Return a draft without nodes."""
        return Draft.empty(state.tokens)


def append_drafter_rows(drafter_state: Any, new_rows: BatchedState) -> Any:
    """Append the batch rows of `new_rows` to `drafter_state` (None: no rows yet), and return the state of all rows."""
    if drafter_state is None:
        return new_rows
    drafter_state.append_rows(new_rows)
    return drafter_state
