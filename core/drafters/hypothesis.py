"""Drafter that copies from a hypothesis: a guess of the whole output, such as the last transcript of the same sound.

    drafter = HypothesisDrafter(allowed, reach=16)
    prompts = [PromptInputs(..., hypothesis=(464, 2993, 318, …))]

The tokens so far are aligned with the hypothesis by edit distance (Wagner and Fischer 1974), one step a token, and what
follows the best alignment is drafted. So a wrong word, a missing one or one too many costs a pass and no more, where a
lookup of the last tokens loses its place. Guesses of whole outputs are known as input-guided decoding (Ge et al. 2022,
arXiv 2205.10350) and, for texts that are edited, as predicted outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.batched_state import BatchedState, cached_arange
from polydraft.core.draft import Draft, max_without_sync
from polydraft.core.drafters.base import Drafter, DraftOutcome, MissedTokens, append_drafter_rows
from polydraft.core.drafters.history.suffix import MatchAcceptance
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import is_in_mask

# Costs of edits. Where one token could have come for another or in addition, the first is commoner; where the token is
# the next but one of the hypothesis, the next has been left out.
REPLACED, INSERTED, LEFT_OUT = 2, 3, 1
JUMP = 7  # of going on anywhere else
ELSEWHERE = 2  # of beginning anywhere else than at the beginning


@dataclass
class HypothesisState(BatchedState):
    """Hypothesis of every sequence, and how the tokens so far align with it."""

    tokens: Tensor  # [B, H] ids, right-padded
    lens: Tensor  # [B] tokens of each
    # [B, H+1] cost of the edits that turn the first j tokens of the hypothesis into the tokens so far, up to a constant
    costs: Tensor
    run: Tensor  # [B] tokens since the last one that was drafted wrongly

    def align(self, tokens: Tensor, counts: Tensor, free_from: int | None = None) -> None:
        """Align tokens that follow those aligned so far.

        Args:
            tokens (Tensor): `[B, K]` ids.
            counts (Tensor): `[B]` how many of them every sequence has.
            free_from (int | None): Ids from this one on are passed over where the hypothesis does not have them.
        """
        index = cached_arange(self.costs.shape[1], tokens.device)
        for step in range(max_without_sync(counts, tokens.shape[1])):
            token = tokens[:, step, None]
            is_equal = self.tokens == token
            costs = self.costs + INSERTED
            costs[:, 1:] = torch.minimum(costs[:, 1:], self.costs[:, :-1] + REPLACED * (~is_equal).int())
            costs = (costs - LEFT_OUT * index).cummin(1).values + LEFT_OUT * index
            costs = (costs - self.least(costs)).clamp(max=JUMP)
            is_aligned = (step < counts)[:, None]
            if free_from is not None:
                is_aligned = is_aligned & ((token < free_from) | is_equal.any(1, keepdim=True))
            self.costs = torch.where(is_aligned, costs, self.costs)

    def least(self, costs: Tensor) -> Tensor:
        """Return the least cost of every sequence, `[B, 1]`."""
        return self.without_padding(costs).amin(1, keepdim=True)

    def without_padding(self, costs: Tensor) -> Tensor:
        """Return costs `[B, H+1]`, very large where the hypothesis has ended before."""
        index = cached_arange(costs.shape[1], costs.device)
        return costs.masked_fill(index > self.lens[:, None], torch.iinfo(costs.dtype).max)

    def position(self) -> Tensor:
        """Return the index of the token that follows the best alignment, `[B]`; the first of several."""
        return self.without_padding(self.costs).argmin(1)


class HypothesisDrafter(Drafter):
    """Drafter of what follows in the hypothesis of every sequence; without one it drafts nothing.

    Args:
        allowed (Tensor): `[V]` bool, ids that may be drafted.
        reach (int): Most tokens of a draft.
        pairs_from (int | None): Ids from this one on come in pairs, as Whisper's timestamps do where one segment ends
            and the next begins: after a single one it is drafted again. None: there are no such ids.
    """

    def __init__(self, allowed: Tensor, reach: int = 16, pairs_from: int | None = None) -> None:
        self.allowed, self.reach, self.pairs_from = allowed, reach, pairs_from
        self.acceptance = MatchAcceptance(2 * reach, allowed.device)

    def hypotheses(self, prompts: PrefillOutput) -> list[Tensor]:
        """Return the hypotheses of new sequences, ids `[H]` each."""
        return [torch.tensor(ids, dtype=torch.long) for ids in prompts.hypotheses]

    def begin(self, drafter_state: HypothesisState | None, prompts: PrefillOutput) -> HypothesisState:
        """Append the hypotheses of new sequences to the state, and return it."""
        hypotheses = self.hypotheses(prompts) or [torch.empty(0, dtype=torch.long)] * len(prompts.branch_lens)
        device = prompts.branch_lens.device
        tokens = torch.nn.utils.rnn.pad_sequence(hypotheses, batch_first=True).to(device)
        lens = torch.tensor([len(ids) for ids in hypotheses], device=device)
        costs = torch.full((len(tokens), tokens.shape[1] + 1), ELSEWHERE, dtype=torch.int, device=device)
        costs[:, 0] = 0
        return append_drafter_rows(drafter_state, HypothesisState(tokens, lens, costs, torch.zeros_like(lens)))

    def draft(self, state: BatchState, drafter_state: HypothesisState, sampler: Sampler, noise: Noise) -> Draft:
        """Return the next tokens of every hypothesis as a chain."""
        if not drafter_state.tokens.shape[1]:
            return Draft.empty(state.tokens)
        depth = cached_arange(self.reach, state.tokens.device)
        hypothesis, first = drafter_state.tokens, drafter_state.position()
        following = hypothesis.gather(1, first.clamp(max=hypothesis.shape[1] - 1)[:, None])[:, 0]
        is_single = self.is_single(state)
        if self.pairs_from is not None:  # the hypothesis may have the partner itself
            is_single = is_single & (following < self.pairs_from)
        index = (first - is_single.long())[:, None] + depth  # after a single one, its partner comes before the rest
        tokens = hypothesis.gather(1, index.clamp(0, hypothesis.shape[1] - 1))
        is_partner = is_single[:, None] & (depth == 0)
        tokens = torch.where(is_partner, state.root_tokens(), tokens)
        valid = is_partner | (index < drafter_state.lens[:, None]) & is_in_mask(tokens, self.allowed)
        valid = valid.cummin(1).values
        path_probs = self.acceptance.probs(1 + drafter_state.run[:, None] + depth).cumprod(1) * valid
        return Draft.from_chain(tokens, valid, path_probs=path_probs)

    def is_single(self, state: BatchState) -> Tensor:
        """Return `[B]` bool: the last token is of those that come in pairs, and the first of its pair."""
        if self.pairs_from is None:
            return torch.zeros_like(state.num_generated, dtype=torch.bool)
        root = state.root_tokens()[:, 0]
        index = (state.num_tokens[:, None] - 2).clamp(min=0)
        has_partner = (state.tokens.gather(1, index)[:, 0] >= self.pairs_from) | (state.num_generated < 2)
        return (root >= self.pairs_from) & ~has_partner

    def observe(self, state: BatchState, drafter_state: HypothesisState, outcome: DraftOutcome) -> None:
        """Align the committed tokens, and learn how far drafts hold."""
        draft, result = outcome.draft, outcome.verification
        if draft.size:
            depth = cached_arange(draft.size, result.tokens.device)
            num_accepted = result.num_accepted[:, None]
            is_tested = draft.valid & (depth <= num_accepted) & (depth < result.num_committed[:, None])
            lengths = 1 + drafter_state.run[:, None] + depth
            self.acceptance.observe(lengths.clamp(max=2 * self.reach), depth < num_accepted, is_tested)
            was_wrong = (is_tested & (depth >= num_accepted)).any(1)
            drafter_state.run = torch.where(was_wrong, 0, drafter_state.run + result.num_committed)
        drafter_state.align(result.tokens, result.num_committed, self.pairs_from)

    def catch_up(self, state: BatchState, drafter_state: HypothesisState, missed: MissedTokens) -> None:
        """Align the tokens that were committed meanwhile."""
        drafter_state.align(missed.tokens, missed.counts, self.pairs_from)
