"""Drafter that copies from a hypothesis: a guess of the whole output, such as the last transcript of the same sound.

    drafter = HypothesisDrafter(allowed, reach=16)
    prompts = [PromptInputs(..., hypothesis=(464, 2993, 318, …))]

The tokens so far are aligned with the hypothesis by edit distance (Wagner and Fischer 1974), one step a token, and what
follows the best alignment is drafted. So a wrong word, a missing one or one too many costs a pass and no more, where a
lookup of the last tokens loses its place. Guesses of whole outputs are known as input-guided decoding (Ge et al. 2022,
arXiv 2205.10350) and, for texts that are edited, as predicted outputs.

A pass that rejects a token has scored those after it all the same. What the target would write there is a revision of
the hypothesis, as in Jacobi decoding (Song et al. 2021): where the next words depend on a sound more than on the words
before them, a pass that fails at the first error of a draft has corrected the others too. Only tokens that are doubtful
in the first place are revised, and revisions are drafted as long as they have been right more often than what they
replace.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

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
from polydraft.core.verification import VerificationResult

ELSEWHERE = 2  # of beginning anywhere else than at the beginning
NONE = -1  # no token id
REVISED_BELOW = 0.7  # probability of tokens from which on they stay, since a word that is missing shifts revisions
FORGETTING = 0.9  # weight of a comparison of revisions with what they replace after one more pass that has any


@dataclass(frozen=True)
class EditCosts:
    """Costs of edits that turn a hypothesis into a text."""

    replaced: int  # of a token by another one
    inserted: int  # of a token that the hypothesis does not have
    left_out: int  # of a token that the text does not have
    jump: int  # of going on anywhere else


# Where one token could have come for another or in addition, the first is commoner in texts; where the token is the
# next but one of the hypothesis, the next has been left out.
TEXT_COSTS = EditCosts(replaced=2, inserted=3, left_out=1, jump=7)


@dataclass(frozen=True)
class Hypothesis:
    """Guess of a whole output."""

    tokens: Tensor  # [H] ids
    probs: Tensor  # [H] probability of each to be right if those before it are


@dataclass
class HypothesisState(BatchedState):
    """Hypothesis of every sequence, and how the tokens so far align with it."""

    tokens: Tensor  # [B, H] ids, right-padded
    probs: Tensor  # [B, H] probability of each to be right in its place
    revisions: Tensor  # [B, H] what the target wrote after a draft of the tokens before, NONE where it has not
    lens: Tensor  # [B] tokens of each
    # [B, H+1] cost of the edits that turn the first j tokens of the hypothesis into the tokens so far, up to a constant
    costs: Tensor
    run: Tensor  # [B] tokens since the last one that was drafted wrongly
    first_index: Tensor  # [B] index of the token that the last draft began with; before it a token of another origin

    @classmethod
    def from_hypotheses(cls, hypotheses: list[Hypothesis], device: torch.device) -> HypothesisState:
        """Return the state of sequences without tokens."""
        pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
        tokens, probs = pad([given.tokens for given in hypotheses]), pad([given.probs for given in hypotheses])
        tokens, probs = tokens.to(device), probs.to(device)
        lens = torch.tensor([len(given.tokens) for given in hypotheses], device=device)
        costs = torch.full((len(tokens), tokens.shape[1] + 1), ELSEWHERE, dtype=torch.int, device=device)
        costs[:, 0] = 0
        zeros = torch.zeros_like(lens)
        return cls(tokens, probs, torch.full_like(tokens, NONE), lens, costs, zeros, zeros.clone())

    def revise(self, tokens: Tensor, index: Tensor) -> None:
        """Note what the target wrote.

        Args:
            tokens (Tensor): `[B, K]` ids; NONE is not noted.
            index (Tensor): `[B, K]` distinct indices of the tokens of the hypothesis in their places.
        """
        is_noted = (tokens != NONE) & (index >= 0) & (index < self.lens[:, None])
        new = torch.nn.functional.pad(self.revisions, (0, 1))  # a last column for all that is not noted
        new.scatter_(1, torch.where(is_noted, index, self.tokens.shape[1]), tokens)
        self.revisions = new[:, :-1]

    def align(
        self, tokens: Tensor, counts: Tensor, edits: EditCosts = TEXT_COSTS, free_from: int | None = None
    ) -> None:
        """Align tokens that follow those aligned so far.

        Args:
            tokens (Tensor): `[B, K]` ids.
            counts (Tensor): `[B]` how many of them every sequence has.
            edits (EditCosts): Costs of edits.
            free_from (int | None): Ids from this one on are passed over where the hypothesis does not have them.
        """
        index = cached_arange(self.costs.shape[1], tokens.device)
        for step in range(max_without_sync(counts, tokens.shape[1])):
            token = tokens[:, step, None]
            is_equal = (self.tokens == token) | (self.revisions == token)
            costs = self.costs + edits.inserted
            costs[:, 1:] = torch.minimum(costs[:, 1:], self.costs[:, :-1] + edits.replaced * (~is_equal).int())
            costs = (costs - edits.left_out * index).cummin(1).values + edits.left_out * index
            costs = (costs - self.least(costs)).clamp(max=edits.jump)
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

    The class attribute `edits` says how the hypotheses err: costs of their alignment.

    Args:
        allowed (Tensor): `[V]` bool, ids that may be drafted.
        reach (int): Most tokens of a draft.
        pairs_from (int | None): Ids from this one on come in pairs, as Whisper's timestamps do where one segment ends
            and the next begins: after a single one it is drafted again. None: there are no such ids.
    """

    edits = TEXT_COSTS

    def __init__(self, allowed: Tensor, reach: int = 16, pairs_from: int | None = None) -> None:
        self.allowed: Tensor = allowed
        self.reach: int = reach
        self.pairs_from: int | None = pairs_from
        # of tokens of hypotheses as they were given, and of revisions
        self.acceptance: MatchAcceptance
        self.revised_acceptance: MatchAcceptance
        self.acceptance, self.revised_acceptance = (MatchAcceptance(2 * reach, allowed.device) for _ in range(2))
        # of revisions: right ones less right ones replaced
        self.advantage: Tensor = torch.zeros((), device=allowed.device)

    def hypotheses(self, prompts: PrefillOutput) -> list[Hypothesis]:
        """Return the hypotheses of new sequences, which are empty for those without."""
        given = prompts.hypotheses or [()] * len(prompts.branch_lens)
        return [Hypothesis(torch.tensor(ids, dtype=torch.long), torch.ones(len(ids))) for ids in given]

    def begin(self, drafter_state: HypothesisState | None, prompts: PrefillOutput) -> HypothesisState:
        """Append the hypotheses of new sequences to the state, and return it."""
        new = HypothesisState.from_hypotheses(self.hypotheses(prompts), prompts.branch_lens.device)
        return append_drafter_rows(drafter_state, new)

    def draft(self, state: BatchState, drafter_state: HypothesisState, sampler: Sampler, noise: Noise) -> Draft:
        """Return the next tokens of every hypothesis as a chain."""
        if not drafter_state.tokens.shape[1]:
            return Draft.empty(state.tokens)
        depth = cached_arange(self.reach, state.tokens.device)
        first = drafter_state.position()
        is_single = self.is_single(state)
        if self.pairs_from is not None:  # the hypothesis may have the partner itself
            last = drafter_state.tokens.shape[1] - 1
            following = drafter_state.tokens.gather(1, first.clamp(max=last)[:, None])[:, 0]
            is_single = is_single & (following < self.pairs_from)
        # after a single one, its partner comes before the rest
        drafter_state.first_index = first - is_single.long()
        given, revised, given_probs = self.read(drafter_state, self.reach)
        is_revised = (revised != NONE) & (self.advantage >= 0)
        tokens = torch.where(is_revised, revised, given)
        is_partner = is_single[:, None] & (depth == 0)
        tokens = torch.where(is_partner, state.root_tokens(), tokens)
        is_within = drafter_state.first_index[:, None] + depth < drafter_state.lens[:, None]
        valid = is_partner | is_within & is_in_mask(tokens, self.allowed)
        valid = valid.cummin(1).values
        lengths = 1 + drafter_state.run[:, None] + depth
        acceptance = self.acceptance.probs(lengths) * given_probs
        probs = torch.where(is_revised, self.revised_acceptance.probs(lengths), acceptance).clamp(max=1)
        return Draft.from_chain(tokens, valid, path_probs=probs.cumprod(1) * valid)

    def read(self, drafter_state: HypothesisState, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens of every hypothesis, their revisions and probabilities, from where the last draft began.

        Args:
            drafter_state (HypothesisState): The state, of hypotheses that are not all empty.
            num_tokens (int): N.

        Returns:
            tuple[Tensor, Tensor, Tensor]: ids, ids or NONE, and probabilities of the tokens without revisions,
                `[B, N]` each. Outside of a hypothesis they are undefined.
        """
        depth = cached_arange(num_tokens, drafter_state.lens.device)
        index = (drafter_state.first_index[:, None] + depth).clamp(0, drafter_state.tokens.shape[1] - 1)
        given, revisions, probs = drafter_state.tokens, drafter_state.revisions, drafter_state.probs
        return given.gather(1, index), revisions.gather(1, index), probs.gather(1, index)

    def is_single(self, state: BatchState) -> Tensor:
        """Return `[B]` bool: the last token is of those that come in pairs, and the first of its pair."""
        if self.pairs_from is None:
            return torch.zeros_like(state.num_generated, dtype=torch.bool)
        root = state.root_tokens()[:, 0]
        index = (state.num_tokens[:, None] - 2).clamp(min=0)
        has_partner = (state.tokens.gather(1, index)[:, 0] >= self.pairs_from) | (state.num_generated < 2)
        return (root >= self.pairs_from) & ~has_partner

    def observe(self, state: BatchState, drafter_state: HypothesisState, outcome: DraftOutcome) -> None:
        """Learn how far drafts hold, revise the hypotheses, and align the committed tokens."""
        draft, result = outcome.draft, outcome.verification
        if draft.size:
            depth = cached_arange(draft.size, result.tokens.device)
            is_tested = draft.valid & (depth <= result.num_accepted[:, None]) & (depth < result.num_committed[:, None])
            self.learn_acceptance(drafter_state, draft, result, is_tested)
            was_wrong = (is_tested & (depth >= result.num_accepted[:, None])).any(1)
            drafter_state.run = torch.where(was_wrong, 0, drafter_state.run + result.num_committed)
            self.revise(drafter_state, draft, result)
        drafter_state.align(result.tokens, result.num_committed, self.edits, self.pairs_from)

    def learn_acceptance(
        self, drafter_state: HypothesisState, draft: Draft, result: VerificationResult, is_tested: Tensor
    ) -> None:
        """Count which drafted tokens were right, and where revisions were or what they replace.

        Args:
            drafter_state (HypothesisState): The state that the draft was made from.
            draft (Draft): The draft of N nodes.
            result (VerificationResult): Its verification.
            is_tested (Tensor): `[B, N]` bool, nodes that were accepted, and the first after them.
        """
        given, revised, probs = self.read(drafter_state, draft.size)
        is_revision = (revised != NONE) & (draft.tokens == revised)
        depth = cached_arange(draft.size, is_tested.device)
        is_right, lengths = depth < result.num_accepted[:, None], 1 + drafter_state.run[:, None] + depth
        self.acceptance.observe(lengths, is_right, is_tested & ~is_revision, probs)
        self.revised_acceptance.observe(lengths, is_right, is_tested & is_revision)
        committed = result.target_tokens[:, :-1]  # node i of a chain competes with the target's token at tree index i
        is_compared = is_tested & (revised != NONE) & (given != revised)
        gains = ((revised == committed).float() - (given == committed).float()) * is_compared
        self.advantage = torch.where(is_compared.any(), FORGETTING * self.advantage + gains.sum(), self.advantage)

    def revise(self, drafter_state: HypothesisState, draft: Draft, result: VerificationResult) -> None:
        """Note what the target wrote behind the first rejected token.

        That one has no revision: whether it is wrong or one before it is missing, later tokens tell.
        """
        depth = cached_arange(draft.size + 1, draft.tokens.device)
        is_scored = torch.nn.functional.pad(draft.valid, (1, 0), value=True)
        *_, probs = self.read(drafter_state, draft.size + 1)
        is_behind = is_scored & (depth > result.num_accepted[:, None]) & (probs < REVISED_BELOW)
        if self.pairs_from is not None:  # they come in addition to words, not in their places
            is_behind = is_behind & (result.target_tokens < self.pairs_from)
        tokens = torch.where(is_behind, result.target_tokens, NONE)
        drafter_state.revise(tokens, drafter_state.first_index[:, None] + depth)

    def catch_up(self, state: BatchState, drafter_state: HypothesisState, missed: MissedTokens) -> None:
        """Align the tokens that were committed meanwhile."""
        drafter_state.align(missed.tokens, missed.counts, self.edits, self.pairs_from)
