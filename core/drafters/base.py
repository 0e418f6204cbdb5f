"""Interface of drafters, and the simplest of them.

A drafter holds weights and settings, and what it learns for all requests. What belongs to single requests is in its
state, which rows are added to and removed from like any other state (`core.batched_state`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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


@dataclass(frozen=True)
class MissedTokens:
    """Tokens that were committed while another drafter drafted, K of the batch row that has most of them.

    They are right-padded; what padding holds is undefined.
    """

    counts: Tensor  # [B] number of tokens
    tokens: Tensor  # [B, K, …] ids or latents
    hidden_states: Tensor  # [B, R, K, D] target hidden states of the position before each token
    outputs: Tensor  # [B, …] processed target outputs from which the last token was sampled


@dataclass(frozen=True)
class PassCost:
    """Cost and gain of one decoding step, known after it."""

    num_rows: int  # batch rows B
    num_scored: int  # positions that the target scored, over all batch rows: roots and draft nodes
    num_committed: int  # tokens that the step committed, over all batch rows
    seconds: float  # wall time of the step, drafting included


class Learner(Protocol):
    """Learns from passes for all sequences, apart from the state of any."""

    def learn(self, state: BatchState, outcome: DraftOutcome) -> None:
        """Learn from a verified draft.

        Args:
            state (BatchState): State of the target, with the accepted tokens already committed.
            outcome (DraftOutcome): The draft and its verification.
        """


class Drafter(ABC):
    """Proposes draft tokens for a batch of sequences."""

    # what `catch_up` reads of missed tokens
    follows_hidden_states: bool = False
    follows_outputs: bool = False

    @abstractmethod
    def begin(self, drafter_state: Any, prompts: PrefillOutput) -> Any:
        """Add rows for new sequences to the drafter's state.

        Args:
            drafter_state (Any): State of the rows so far; None if there are none.
            prompts (PrefillOutput): What the target computed for the prompts of the new rows.

        Returns:
            Any: State of all rows; new ones are at the end.
        """

    @abstractmethod
    def draft(self, state: BatchState, drafter_state: Any, sampler: Sampler, noise: Noise) -> Draft:
        """Return a draft of the tokens after the last committed one (the root) of every sequence.

        Args:
            state (BatchState): Committed state of the target.
            drafter_state (Any): State that `begin` returned; may be updated.
            sampler (Sampler): Sampler of the target, whose token constraints also apply to drafts.
            noise (Noise): Random numbers of the sequences.
        """

    @abstractmethod
    def observe(self, state: BatchState, drafter_state: Any, outcome: DraftOutcome) -> None:
        """Update `drafter_state` in place after a verification.

        Args:
            state (BatchState): State of the target, with the accepted tokens already committed.
            drafter_state (Any): State that `begin` returned.
            outcome (DraftOutcome): The last draft and its verification.
        """

    def prepare(self, state: BatchState, drafter_state: Any) -> None:  # noqa: B027 (most drafters need no preparation)
        """Do what a step needs of the host before it runs, which a captured CUDA graph would not repeat.

        Args:
            state (BatchState): Committed state of the target.
            drafter_state (Any): State that `begin` returned.
        """

    def record(self, drafter_state: Any, cost: PassCost) -> None:  # noqa: B027
        """Learn from the cost of the step that has ended.

        Args:
            drafter_state (Any): State that `begin` returned, before rows that ended are removed.
            cost (PassCost): Number of scored and committed tokens, and seconds.
        """

    def catch_up(self, state: BatchState, drafter_state: Any, missed: MissedTokens) -> None:  # noqa: B027
        """Update `drafter_state` in place after passes that another drafter drafted for.

        Args:
            state (BatchState): State of the target, with the missed tokens already committed.
            drafter_state (Any): State that `begin` returned.
            missed (MissedTokens): Tokens committed since this drafter last observed an outcome, or began.
        """

    def learners(self) -> Sequence[Learner]:
        """Return what learns from every pass, whoever drafted; drafters may share it."""
        return ()

    def finish(self, prompt_end: Sequence[int], tokens: Sequence[Any]) -> None:  # noqa: B027
        """Learn from a sequence that has ended.

        Args:
            prompt_end (Sequence[int]): Last token ids of its prompt.
            tokens (Sequence[Any]): All generated tokens.
        """

    def active_name(self, drafter_state: Any) -> str:
        """Return the name of the method that drafts the next step, where a drafter chooses among several, else ""."""
        return ""


class StatelessDrafter(Drafter):
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
