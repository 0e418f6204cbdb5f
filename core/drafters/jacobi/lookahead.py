"""Jacobi window with side branches out of the history (lookahead decoding).

The window's trajectory computes many distributions whose tokens are then discarded. A pool of n-grams out of them
offers branches beside the window, so that a pass also succeeds where the window has not converged yet. Fu et al. 2024
("Break the Sequential Dependency of LLM Inference Using Lookahead Decoding", arXiv 2402.02057) keep the n-grams; here
the pool is a `HistorySource`, such as recycled distributions, which are ranked with the shared noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polydraft.core.batched_state import BatchedState, cached_arange
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import DraftOutcome, MissedTokens, append_drafter_rows
from polydraft.core.drafters.history.drafter import HistorySource, SourceDrafter, TokenHistory
from polydraft.core.drafters.jacobi.window import JacobiDrafter, JacobiState
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState


@dataclass
class LookaheadState(BatchedState):
    """Jacobi window of every sequence, and how many of its first guesses are known to be right."""

    window: JacobiState
    num_pending: Tensor  # [B] accepted tokens that are not committed yet; they lead the window


class LookaheadDrafter(SourceDrafter):
    """Drafter of a Jacobi window with branches beside it.

    Args:
        jacobi (JacobiDrafter): Drafter of the window.
        sources (Sequence[HistorySource]): Where branches come from.
        branch_nodes (int): Nodes of a source's branches.
    """

    follows_outputs = True

    def __init__(self, jacobi: JacobiDrafter, sources: Sequence[HistorySource], branch_nodes: int) -> None:
        self.jacobi: JacobiDrafter = jacobi
        self.sources: Sequence[HistorySource] = sources
        self.branch_nodes: int = branch_nodes

    def begin(self, drafter_state: LookaheadState | None, prompts: PrefillOutput) -> LookaheadState:
        """Append sequences with an empty window to the state, and return it."""
        window = self.jacobi.begin(None, prompts)
        return append_drafter_rows(drafter_state, LookaheadState(window, torch.zeros_like(prompts.branch_lens[:, 0])))

    def prepare(self, state: BatchState, drafter_state: LookaheadState) -> None:
        """Make the window as long as suits the number of sequences."""
        self.jacobi.prepare(state, drafter_state.window)

    def draft(self, state: BatchState, drafter_state: LookaheadState, sampler: Sampler, noise: Noise) -> Draft:
        """Return the window, and branches below the last token that is known to be right."""
        chain = self.jacobi.draft(state, drafter_state.window, sampler, noise)
        num_pending = drafter_state.num_pending.clamp(max=chain.size)  # the window may have become shorter
        history = TokenHistory.after_pending(state, chain.tokens, num_pending)
        draft = chain
        for source in self.sources:
            branches = source.propose(history, sampler, noise).keep_likeliest(self.branch_nodes)
            # they grow below the last pending token, node `num_pending` - 1 of the window, or below the root
            draft = draft.with_branches(branches, num_pending[:, None] - 1)
        return draft

    def observe(self, state: BatchState, drafter_state: LookaheadState, outcome: DraftOutcome) -> None:
        """Move the window on as after a draft of the window alone, and put accepted tokens of branches into it."""
        window, result = drafter_state.window.guesses.shape[1], outcome.verification
        chain = Draft.from_chain(outcome.draft.tokens[:, :window], outcome.draft.valid[:, :window])
        distribution = replace(
            outcome.distribution,
            logits=outcome.distribution.logits[:, : window + 1],
            pre_filter_logits=None,
        )
        in_window = replace(result, target_tokens=result.target_tokens[:, : window + 1])
        moved = replace(outcome, draft=chain, distribution=distribution, verification=in_window)
        self.jacobi.observe(state, drafter_state.window, moved)
        # accepted tokens after the committed ones: the first guesses of the next window
        index = cached_arange(window, result.tokens.device)
        num_pending = (result.num_matched - result.num_committed).clamp(min=0, max=window)
        source = (result.num_committed[:, None] + index).clamp(max=result.tokens.shape[1] - 1)
        is_pending = index < num_pending[:, None]
        guesses = drafter_state.window.guesses
        drafter_state.window.guesses = torch.where(is_pending, result.tokens.gather(1, source), guesses)
        drafter_state.window.num_scored = torch.maximum(drafter_state.window.num_scored, num_pending[:, None])
        drafter_state.window.restart = drafter_state.window.restart & (num_pending == 0)[:, None]
        drafter_state.num_pending = num_pending
        self.learn(state, outcome)

    def catch_up(self, state: BatchState, drafter_state: LookaheadState, missed: MissedTokens) -> None:
        """Discard the window: its guesses are for committed positions."""
        self.jacobi.catch_up(state, drafter_state.window, missed)
        drafter_state.num_pending = torch.zeros_like(drafter_state.num_pending)
