"""Suffix lookup: copy what followed the longest earlier occurrences of the last tokens.

Occurrences are searched in the sequence itself (prompt and answer), in answers that have ended, and in a reference
text. Several continuations become a tree, weighted by the length of their matches. Prompt lookup (Saxena 2023) copies
after the last few tokens alone; the longest match was proposed by Oliaro et al. 2024 (SuffixDecoding, arXiv 2411.04975)
and Hu et al. 2024 (SAM-Decoding, arXiv 2411.10666), and retrieval from texts by He et al. 2023 (REST, arXiv
2311.08252). They walk a suffix tree or automaton per sequence; here all positions of all sequences are compared at
once, which takes a few operations of the device and no structure beside the tokens.

How often a continuation holds after a match of l tokens is learned from the tokens that come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.batched_state import cached_arange
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import DraftOutcome
from polydraft.core.drafters.history.drafter import HistorySource, TokenHistory
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import is_in_mask

NO_TOKEN = -1  # separates texts, and stands for padding; equal to no token
PRIOR_WEIGHT, MAX_WEIGHT = 6.0, 96.0  # tests that the prior counts for, and after which older ones fade
LENGTH_BASE = 3.0  # a match that is one token longer weighs as many times more


class TextPool:
    """Bounded store of texts to look tokens up in: a reference text, and the latest answers.

    Args:
        capacity (int): Tokens of answers that are kept; the oldest are dropped.
        device (torch.device): Device of the tokens.
        reference (Tensor | None): `[F]` ids of a text that is always kept.
    """

    def __init__(self, capacity: int, device: torch.device, reference: Tensor | None = None) -> None:
        fixed = torch.empty(0, dtype=torch.long) if reference is None else reference.long()
        self.buffer: Tensor = torch.full((capacity + len(fixed) + 1,), NO_TOKEN, device=device)
        self.buffer[capacity : capacity + len(fixed)] = fixed.to(device)
        self.capacity: int = capacity
        self.num_answer_tokens: int = 0

    def add(self, tokens: Sequence[int]) -> None:
        """Append an answer, and drop the oldest tokens if there are more than fit."""
        kept = [*tokens[-(self.capacity - 1) :], NO_TOKEN] if self.capacity > 1 else []
        if not kept:
            return
        answers = self.buffer[: self.capacity]  # filled from the end, so that the used part is contiguous
        moved = answers[len(kept) :].clone()
        answers[: len(moved)] = moved
        answers[len(moved) :] = torch.tensor(kept, device=answers.device)
        self.num_answer_tokens = min(self.capacity, self.num_answer_tokens + len(kept))

    def tokens(self) -> Tensor:
        """Return the ids of all texts, `[P]`, separated and ended by NO_TOKEN.

        On accelerators unused entries are included, so that the shape stays the same.
        """
        start = self.capacity - self.num_answer_tokens if self.buffer.device.type == "cpu" else 0
        return self.buffer[start:]


class MatchAcceptance:
    """Probability that the token after a match of l tokens is right, learned online for every l.

    Args:
        max_length (int): Longest match that is told apart.
        device (torch.device): Device of the table.
    """

    def __init__(self, max_length: int, device: torch.device) -> None:
        lengths = torch.arange(max_length + 1, device=device)
        prior = torch.where(lengths > 0, 1 - 0.75 * 0.82 ** (lengths - 1).clamp(min=0), 0.0)
        self.tests: Tensor = torch.full((max_length + 1,), PRIOR_WEIGHT, device=device)
        self.hits: Tensor = prior * self.tests

    def probs(self, lengths: Tensor) -> Tensor:
        """Return the probability `[…]` for matches of `lengths` `[…]` tokens."""
        return (self.hits / self.tests)[lengths.clamp(max=len(self.tests) - 1)]

    def observe(
        self, lengths: Tensor, is_right: Tensor, is_tested: Tensor, token_probs: Tensor | None = None
    ) -> None:
        """Count tests.

        Args:
            lengths (Tensor): `[…]` lengths of matches.
            is_right (Tensor): `[…]` bool, whether the token was right.
            is_tested (Tensor): `[…]` bool, which entries are tests.
            token_probs (Tensor | None): `[…]` probability of every token where its place is right, which is then what
                the matches are counted for; None: 1.
        """
        index = lengths.clamp(max=len(self.tests) - 1).flatten()
        tested = is_tested.flatten().float()
        self.tests.index_add_(0, index, tested if token_probs is None else tested * token_probs.flatten())
        self.hits.index_add_(0, index, tested * is_right.flatten())
        fading = (MAX_WEIGHT / self.tests).clamp(max=1)
        self.tests.mul_(fading)
        self.hits.mul_(fading)


@dataclass
class Continuation:
    """Likeliest continuation of every sequence at the last draft, by which the acceptance is learned."""

    num_generated: Tensor  # [B] tokens before it
    tokens: Tensor  # [B, R] ids; NO_TOKEN after the end of its text
    length: Tensor  # [B] length of the match that it follows


class SuffixSource(HistorySource):
    """Source that copies what followed the longest matches of the last tokens.

    Args:
        allowed (Tensor): `[V]` bool, ids that may be drafted.
        reach (int): Tokens copied after a match.
        branches (int): Matches that are followed.
        max_length (int): Longest match; longer ones count the same.
        memory (int): Tokens of finished answers that are kept.
        reference (Tensor | None): `[F]` ids of a text to look up in.
    """

    def __init__(
        self, allowed: Tensor, reach: int = 16, branches: int = 4, max_length: int = 16, memory: int = 4096,
        reference: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.allowed: Tensor = allowed
        self.reach: int = reach
        self.branches: int = branches
        self.max_length: int = max_length
        self.pool: TextPool = TextPool(memory, allowed.device, reference)
        self.acceptance: MatchAcceptance = MatchAcceptance(max_length + reach, allowed.device)
        self.continuation: Continuation | None = None

    def propose(self, history: TokenHistory, sampler: Sampler, noise: Noise) -> Draft:
        """Return a tree of the tokens that followed the longest matches."""
        text, root = self.text(history)
        ends, lengths = longest_matches(text, root, self.branches, self.max_length)
        copied = self.copy_after(text, ends, lengths)  # [B, M, R]
        path_probs, parents = self.weigh(copied, lengths)
        self.continuation = Continuation(history.num_generated, copied[:, 0], lengths[:, 0])
        is_node = path_probs > 0
        return Draft(
            copied.flatten(1).clamp(min=0), parents, is_node, max_depth=self.reach, is_chain=self.branches == 1,
            path_probs=path_probs,
        )  # fmt: skip

    def text(self, history: TokenHistory) -> tuple[Tensor, Tensor]:
        """Return all texts in a row, `[B, T]` ids, the sequence itself last; and the index of its last token `[B, 1]`.

        Padding is NO_TOKEN.
        """
        tokens, num_tokens = history.tokens, history.num_tokens[:, None]
        sequence = tokens.masked_fill(cached_arange(tokens.shape[1], tokens.device) >= num_tokens, NO_TOKEN)
        pool = self.pool.tokens()
        return torch.cat([pool.expand(len(sequence), -1), sequence], 1), num_tokens - 1 + len(pool)

    def copy_after(self, text: Tensor, ends: Tensor, lengths: Tensor) -> Tensor:
        """Return the `reach` tokens after every match, `[B, M, R]`; NO_TOKEN where there is none that may be drafted.

        Args:
            text (Tensor): `[B, T]` ids.
            ends (Tensor): `[B, M]` index of the last token of every match.
            lengths (Tensor): `[B, M]` length of the match, 0 for none.
        """
        index = ends[..., None] + 1 + cached_arange(self.reach, text.device)  # [B, M, R]
        copied = text.gather(1, index.flatten(1).clamp(max=text.shape[1] - 1)).view_as(index)
        is_usable = (index < text.shape[1]) & (copied >= 0) & is_in_mask(copied.clamp(min=0), self.allowed)
        is_usable = is_usable & (lengths[..., None] > 0)
        return copied.masked_fill(~is_usable.cummin(2).values, NO_TOKEN)

    def weigh(self, copied: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Merge equal beginnings of continuations into one tree of M * R nodes, continuation by continuation.

        A node that repeats one of an earlier continuation is no node of its own, and gets the probability 0.

        Args:
            copied (Tensor): `[B, M, R]` continuations.
            lengths (Tensor): `[B, M]` lengths of their matches, in descending order.

        Returns:
            Tensor: `[B, M * R]` estimated probability that a node is accepted with its ancestors.
            Tensor: `[B, M * R]` parent of every node; -1 is the root.
        """
        depth = cached_arange(self.reach, copied.device)
        has_token = copied >= 0
        same_prefix = ((copied[:, :, None] == copied[:, None]) & has_token[:, :, None]).cummin(3).values  # [B, M, M, R]
        representative = same_prefix.int().argmax(2)  # [B, M, R], the first continuation with the same beginning
        index = cached_arange(copied.shape[1], copied.device)[:, None]
        is_node = has_token & (representative == index)
        # weights of continuations; those that share a node add up, and siblings divide the acceptance between them
        weights = LENGTH_BASE ** (lengths - lengths[:, :1]).clamp(min=-8) * (lengths > 0)  # [B, M]
        support = (same_prefix * weights[:, None, :, None]).sum(2)  # [B, M, R]
        total = weights.sum(1)[:, None, None].expand(-1, support.shape[1], 1)
        shares = support / torch.cat([total, support[..., :-1]], 2).clamp(min=1e-6)
        probs = self.acceptance.probs(lengths[..., None] + depth) * shares
        path_probs = probs.cumprod(2) * is_node
        parent = representative.roll(1, 2) * self.reach + depth - 1  # index of the node before, of the same beginning
        return path_probs.flatten(1), torch.where(depth == 0, -1, parent).flatten(1)

    def learn(self, state: BatchState, outcome: DraftOutcome) -> None:
        """Compare the likeliest continuation of the last draft with the tokens that were committed."""
        proposed, result = self.continuation, outcome.verification
        if proposed is None or len(proposed.tokens) != len(result.tokens):
            return
        self.continuation = None
        # the continuation follows pending tokens, which are the first of those that are committed now
        num_pending = proposed.num_generated - (state.num_generated - result.num_committed)
        width = min(self.reach, result.tokens.shape[1])
        depth = cached_arange(width, result.tokens.device)
        index = num_pending[:, None] + depth
        committed = result.tokens.gather(1, index.clamp(min=0, max=result.tokens.shape[1] - 1))
        is_known = (index < result.num_committed[:, None]) & (proposed.tokens[:, :width] >= 0)
        is_right = (committed == proposed.tokens[:, :width]) & is_known
        # a token is tested if all before it were right
        all_before = torch.cat([torch.ones_like(is_right[:, :1]), is_right[:, :-1]], 1).cummin(1).values
        self.acceptance.observe(proposed.length[:, None] + depth, is_right, is_known & all_before)

    def learn_sequence(self, prompt_end: Sequence[int], tokens: Sequence[int]) -> None:
        """Keep the answer, led by the end of its prompt, so that a similar answer can be drafted from its beginning."""
        self.pool.add([*prompt_end, *tokens])


def longest_matches(text: Tensor, root: Tensor, count: int, max_length: int) -> tuple[Tensor, Tensor]:
    """Return where the longest earlier occurrences of the last tokens end.

    Of equal lengths the later occurrence comes first.

    Args:
        text (Tensor): `[B, T]` ids; negative ones match nothing.
        root (Tensor): `[B, 1]` index of the last token.
        count (int): M, occurrences to return.
        max_length (int): Longest match.

    Returns:
        Tensor: `[B, M]` index of the last token of each.
        Tensor: `[B, M]` length of each, 0 where there are fewer.
    """
    num_positions = text.shape[1]
    index = cached_arange(num_positions, text.device)
    is_match = (text == text.gather(1, root)) & (index < root) & (text >= 0)
    lengths = is_match.int()
    for offset in range(1, max_length):
        if text.device.type == "cpu" and not is_match.any():
            break
        earlier = root - offset
        suffix_token = text.gather(1, earlier.clamp(min=0)).masked_fill(earlier < 0, NO_TOKEN)
        is_equal = (text[:, :-offset] == suffix_token) & (suffix_token >= 0)
        # an occurrence that ends at `index` has, `offset` tokens earlier, the same token as the end of the sequence
        is_match[:, offset:] &= is_equal
        is_match[:, :offset] = False
        lengths += is_match
    ranked = torch.where(lengths > 0, lengths.long() * num_positions + index, -1)
    best = ranked.topk(min(count, num_positions), 1)
    return best.indices, torch.where(best.values >= 0, best.values // num_positions, 0)
