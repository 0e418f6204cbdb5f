"""Drafter that proposes what its sources find in the history: earlier tokens, earlier distributions of the target.

    drafter = HistoryDrafter([SuffixSource(...), RecyclingSource(...)], max_nodes=16)

Every source proposes a tree with estimated acceptance; the draft has the nodes of all of them that are likeliest to be
accepted. Accepted tokens that are not committed yet, because their KV entries are not contiguous, lead the next draft,
and sources continue after them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.batched_state import BatchedState, cached_arange, next_positions
from polydraft.core.draft import Draft, max_without_sync
from polydraft.core.drafters.base import Drafter, DraftOutcome, Learner, MissedTokens, append_drafter_rows
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import batch_scatter_


@dataclass(frozen=True)
class TokenHistory:
    """Tokens of every sequence that the target has chosen so far, prompt included, whether committed or pending."""

    tokens: Tensor  # [B, L] ids, right-padded; padding is undefined
    num_tokens: Tensor  # [B]
    num_committed: Tensor  # [B] committed tokens after the prompt
    num_pending: Tensor | None  # [B] tokens that follow them; None if no sequence has any

    @staticmethod
    def after_pending(state: BatchState, pending: Tensor, num_pending: Tensor) -> TokenHistory:
        """Return the committed tokens followed by pending ones.

        Args:
            state (BatchState): Committed state of the target.
            pending (Tensor): `[B, M]` tokens.
            num_pending (Tensor): `[B]` how many of them each sequence has.
        """
        longest = max_without_sync(num_pending, pending.shape[1])
        if not longest:
            return TokenHistory(state.tokens, state.num_tokens, state.num_generated, None)
        tokens = F.pad(state.tokens, (0, longest))
        batch_scatter_(tokens, next_positions(state.num_tokens, longest), pending[:, :longest])
        return TokenHistory(tokens, state.num_tokens + num_pending, state.num_generated, num_pending)

    def last_tokens(self, count: int) -> Tensor:
        """Return the last `count` tokens, `[B, count]`; -1 before the first token of a sequence."""
        index = self.num_tokens[:, None] + cached_arange(count, self.tokens.device) - count
        return self.tokens.gather(1, index.clamp(min=0)).masked_fill(index < 0, -1)

    @property
    def num_generated(self) -> Tensor:
        """Return the number of tokens after the prompt, `[B]`."""
        return self.num_committed if self.num_pending is None else self.num_committed + self.num_pending

    def ranking_noise(self, noise: Noise, level: int, ids: Tensor) -> Tensor | None:
        """Return the shared Gumbel noise of candidates `ids` `[B, W, k]`; None if all rows are greedy.

        `level` counts from 0, for the position after the last token. Drafts from the history are verified under shared
        noise alone.
        """
        positions = (self.num_generated + level)[:, None].expand(-1, ids.shape[1])
        return noise.gumbel_of_ids(positions, ids)


class HistorySource(ABC):
    """Source of draft trees. It holds what it has learned; it has no state of single requests."""

    @abstractmethod
    def propose(self, history: TokenHistory, sampler: Sampler, noise: Noise) -> Draft:
        """Return a tree below the last token of every sequence, with `path_probs`.

        Nodes are ordered parents first, and the nodes of the likeliest path before all others.

        Args:
            history (TokenHistory): Tokens so far.
            sampler (Sampler): Sampler of the target.
            noise (Noise): Random numbers of the sequences.
        """

    def learn(self, state: BatchState, outcome: DraftOutcome) -> None:  # noqa: B027 (some learn from texts alone)
        """Learn from the verification of a draft with this source's proposal.

        Args:
            state (BatchState): State of the target, with the accepted tokens already committed.
            outcome (DraftOutcome): The draft and its verification.
        """

    def learners(self) -> Sequence[Learner]:
        """Return what this source learns from every pass, whoever drafted; sources may share it."""
        return ()

    def learn_sequence(self, prompt_end: Sequence[int], tokens: Sequence[int]) -> None:  # noqa: B027
        """Learn from a sequence that has ended: the last ids of its prompt, and all generated ids."""


@dataclass
class PendingState(BatchedState):
    """Accepted tokens of every sequence that are not committed yet."""

    pending: Tensor  # [B, M] ids, right-padded
    num_pending: Tensor  # [B]


class SourceDrafter(Drafter):
    """Base class of drafters that have sources."""

    sources: Sequence[HistorySource]

    def learn(self, state: BatchState, outcome: DraftOutcome) -> None:
        """Let all sources learn from a draft with their proposals, given the state after its verification."""
        for source in self.sources:
            source.learn(state, outcome)

    def learners(self) -> Sequence[Learner]:
        """Return what the sources learn from every pass."""
        return [learner for source in self.sources for learner in source.learners()]

    def finish(self, prompt_end: Sequence[int], tokens: Sequence[Any]) -> None:
        """Let all sources learn from a sequence that has ended."""
        for source in self.sources:
            source.learn_sequence(prompt_end, tokens)


class HistoryDrafter(SourceDrafter):
    """Drafter of the nodes that its sources expect to be accepted.

    Args:
        sources (Sequence[HistorySource]): Their trees are joined below the root.
        max_nodes (int): Most nodes of a draft, pending tokens included.
    """

    def __init__(self, sources: Sequence[HistorySource], max_nodes: int) -> None:
        self.sources: Sequence[HistorySource] = sources
        self.max_nodes: int = max_nodes

    def begin(self, drafter_state: PendingState | None, prompts: PrefillOutput) -> PendingState:
        """Append sequences without pending tokens to the state, and return it."""
        num_pending = torch.zeros_like(prompts.branch_lens[:, 0])
        new = PendingState(num_pending.new_zeros(len(num_pending), self.max_nodes), num_pending)
        return append_drafter_rows(drafter_state, new)

    def draft(self, state: BatchState, drafter_state: PendingState, sampler: Sampler, noise: Noise) -> Draft:
        """Return the pending tokens, and below the last of them the likeliest nodes of all sources."""
        history = TokenHistory.after_pending(state, drafter_state.pending, drafter_state.num_pending)
        trees = [source.propose(history, sampler, noise) for source in self.sources]
        draft = reduce(Draft.with_branches, trees).keep_likeliest(self.max_nodes)
        num_pending = drafter_state.num_pending
        longest = max_without_sync(num_pending, self.max_nodes)
        if not longest:
            return draft
        pending = drafter_state.pending[:, :longest]
        if draft.size:
            return draft.prepend_chain(pending, num_pending, self.max_nodes)
        valid = cached_arange(longest, pending.device) < num_pending[:, None]
        return Draft.from_chain(pending, valid, path_probs=valid.float())

    def observe(self, state: BatchState, drafter_state: PendingState, outcome: DraftOutcome) -> None:
        """Keep the accepted tokens that are not committed, and let all sources learn."""
        result = outcome.verification
        tokens = F.pad(result.tokens, (0, self.max_nodes))
        # the entries after the committed ones; the rest is padding
        index = next_positions(result.num_committed, self.max_nodes).clamp(max=tokens.shape[1] - 1)
        drafter_state.pending = tokens.gather(1, index)
        drafter_state.num_pending = (result.num_matched - result.num_committed).clamp(min=0, max=self.max_nodes)
        self.learn(state, outcome)

    def catch_up(self, state: BatchState, drafter_state: PendingState, missed: MissedTokens) -> None:
        """Drop the pending tokens: they have been committed meanwhile."""
        drafter_state.num_pending = torch.zeros_like(drafter_state.num_pending)
