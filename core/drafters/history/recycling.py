"""Token recycling: the target's last distributions behind the same tokens are the draft distributions.

Every pass computes the target's distribution at many positions, and most of them are thrown away. Luo et al. 2024
("Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling", arXiv 2408.08696)
keep the likeliest ids behind each token and draft a tree of them; Song et al. 2025 (STAND, arXiv 2506.04708) also keep
their logits, behind n-grams, so that drafts can be sampled. Here they are ranked with the shared noise, which makes the
tables useful at any temperature, and the last two tokens are looked up before the last one alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import DraftOutcome, Learner
from polydraft.core.drafters.history.drafter import HistorySource, TokenHistory
from polydraft.core.drafters.tree.candidates import DraftTree
from polydraft.core.drafters.tree.shapes import CandidateRanking, ChildScores, DynamicTree
from polydraft.core.sampling.filters import fast_topk
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.state import BatchState

NUM_SLOTS = 1 << 15  # of the table of token pairs
PRIOR_HITS = (0.35, 0.6)  # how often a token, or a pair of tokens, is expected to be followed by one of its candidates
PRIOR_WEIGHT, MAX_WEIGHT = 8.0, 256.0  # tests that the prior counts for, and after which older ones fade
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # multiplier of Fibonacci hashing, as a signed number


@dataclass(frozen=True)
class Successors:
    """Candidates for the token after each of W contexts."""

    ids: Tensor  # [B, W, k]
    logits: Tensor  # [B, W, k], -inf where there are fewer
    order: Tensor  # [B, W] number of tokens that were looked up: 2, 1, or 0 where nothing is known


class SuccessorTable:
    """The target's k likeliest ids behind every token, and behind pairs of tokens, when it last saw them.

    Args:
        vocab_size (int): V.
        num_candidates (int): k.
        device (torch.device): Device of the tables.
    """

    def __init__(self, vocab_size: int, num_candidates: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        # slots 0 … V - 1 are for tokens, the others for pairs of tokens; the last collects what is not to be kept
        num_slots = vocab_size + NUM_SLOTS + 1
        self.ids: Tensor = torch.zeros(num_slots, num_candidates, dtype=torch.long, device=device)
        self.logits: Tensor = torch.full((num_slots, num_candidates), -torch.inf, device=device)
        self.pairs: Tensor = torch.full((num_slots,), -1, device=device)  # the pair that a slot is for

    def pair_slots(self, pairs: Tensor) -> Tensor:
        """Return the slot `[…]` of every pair of tokens `[…]`, given as one number."""
        return self.vocab_size + ((pairs * GOLDEN) >> 40 & (NUM_SLOTS - 1))

    def pair_numbers(self, previous: Tensor, tokens: Tensor) -> Tensor:
        """Return one number per pair of tokens `[…]`; -2, which no slot has, if there is no previous token (-1)."""
        return torch.where(previous >= 0, previous * self.vocab_size + tokens, -2)

    def lookup(self, previous: Tensor, tokens: Tensor) -> Successors:
        """Return the candidates after `tokens` `[B, W]`, which follow `previous` `[B, W]` (-1: none)."""
        pairs = self.pair_numbers(previous, tokens)
        slots = self.pair_slots(pairs)
        has_pair = self.pairs[slots] == pairs
        single = tokens.clamp(max=self.vocab_size - 1)  # ids from V on occur in prompts only, and have no successors
        slots = torch.where(has_pair, slots, single)
        ids, logits = self.ids[slots], self.logits[slots]
        is_known = (logits[..., 0] > -torch.inf) & (tokens < self.vocab_size)
        return Successors(ids, logits, torch.where(is_known, 1 + has_pair.long(), 0))

    def store(self, previous: Tensor, tokens: Tensor, ids: Tensor, logits: Tensor, valid: Tensor) -> None:
        """Keep candidates behind tokens and pairs; where several are for one slot, an arbitrary one is kept.

        Args:
            previous (Tensor): `[M]` token before each of `tokens`, -1 for none.
            tokens (Tensor): `[M]`.
            ids (Tensor): `[M, k]` candidates.
            logits (Tensor): `[M, k]` their logits.
            valid (Tensor): `[M]` bool, which entries are to be kept.
        """
        pairs, unused = self.pair_numbers(previous, tokens), len(self.pairs) - 1
        is_token = valid & (tokens < self.vocab_size)
        slots = torch.cat(
            [
                torch.where(is_token, tokens, unused),
                torch.where(is_token & (previous >= 0), self.pair_slots(pairs), unused),
            ]
        )
        self.ids[slots] = ids.repeat(2, 1)
        self.logits[slots] = logits.repeat(2, 1)
        self.pairs[slots] = torch.cat([torch.full_like(pairs, -1), pairs])


class RecyclingMemory:
    """Distributions that the target had behind tokens, and how often their likeliest ids were right.

    Args:
        vocab_size (int): V.
        num_candidates (int): Ids that are kept behind every token.
        device (torch.device): Device of the tables.
    """

    def __init__(self, vocab_size: int, num_candidates: int, device: torch.device) -> None:
        self.table: SuccessorTable = SuccessorTable(vocab_size, min(num_candidates, vocab_size), device)
        # [3] by number of tokens looked up: how often the target's token was among the candidates
        self.tests: Tensor = torch.full((3,), PRIOR_WEIGHT, device=device)
        self.hits: Tensor = self.tests * torch.tensor([0.0, *PRIOR_HITS], device=device)

    def learn(self, state: BatchState, outcome: DraftOutcome) -> None:
        """Store the target's distributions at the root and all nodes, and count how often candidates were right."""
        draft, result = outcome.draft, outcome.verification
        index = state.num_tokens[:, None] - result.num_committed[:, None] - 1  # of the root
        root = state.tokens.gather(1, index)
        before_root = state.tokens.gather(1, (index - 1).clamp(min=0)).masked_fill(index < 1, -1)
        self.count_hits(before_root, root, result.tokens[:, :1])
        logits, ids = fast_topk(outcome.distribution.unfiltered_logits, self.table.ids.shape[1])
        tree_tokens = torch.cat([root, draft.tokens], 1)  # [B, N+1]
        previous = torch.cat([before_root, tree_tokens.gather(1, draft.parents + 1)], 1)
        valid = torch.cat([torch.ones_like(root, dtype=torch.bool), draft.valid], 1)
        self.table.store(
            previous.flatten(), tree_tokens.flatten(), ids.flatten(0, 1), logits.flatten(0, 1).float(), valid.flatten()
        )

    def count_hits(self, previous: Tensor, tokens: Tensor, chosen: Tensor) -> None:
        """Count whether the target's token `chosen` `[B, 1]` is among the candidates after `tokens` `[B, 1]`."""
        found = self.table.lookup(previous, tokens)
        is_hit = ((found.ids == chosen[..., None]) & (found.logits > -torch.inf)).any(-1)
        order = found.order.flatten()
        self.tests.index_add_(0, order, torch.ones_like(order, dtype=self.tests.dtype))
        self.hits.index_add_(0, order, is_hit.flatten().to(self.hits.dtype))
        fading = (MAX_WEIGHT / self.tests).clamp(max=1)
        self.tests.mul_(fading)
        self.hits.mul_(fading)
        self.hits[0] = 0.0


class RecyclingSource(HistorySource):
    """Source that drafts what the target expected when it last saw the same tokens.

    Args:
        memory (RecyclingMemory): What the target expected; sources may share it.
        allowed (Tensor): `[V]` bool, ids that may be drafted.
        depth (int): Longest path.
        width (int): Nodes per level that get children, and children of a node.
        spread (float): Scale of the error of the stored logits, see `CandidateRanking`.
    """

    def __init__(
        self, memory: RecyclingMemory, allowed: Tensor, depth: int = 4, width: int = 3, spread: float = 1.0
    ) -> None:
        self.memory: RecyclingMemory
        self.bias: Tensor
        self.memory, self.bias = memory, torch.where(allowed, 0.0, -torch.inf)  # [V], added to logits
        self.shape: DynamicTree = DynamicTree(depth, min(width, memory.table.ids.shape[1]), stop=0.02)
        self.ranking: CandidateRanking = CandidateRanking(spread)

    def propose(self, history: TokenHistory, sampler: Sampler, noise: Noise) -> Draft:
        """Return a tree of the likeliest candidates, ranked with the noise of their positions."""
        previous, tokens = history.last_tokens(2).split(1, 1)  # [B, 1] each
        tree = DraftTree(len(tokens), tokens.device)
        log_hit_rates = (self.memory.hits / self.memory.tests).log()
        for level in range(self.shape.depth):
            if tree.levels:
                previous, tokens = tokens.gather(1, tree.parent_index), tree.frontier_ids
            found = self.memory.table.lookup(previous, tokens)
            scores = ChildScores(
                found.logits + self.bias[found.ids],
                history.ranking_noise(noise, level, found.ids),
                found.ids,
                log_hit_rates[found.order][..., None],
            )
            if not self.shape.grow(tree, scores, self.ranking):
                break
        return self.shape.draft_main_path_first(tree)

    def learn(self, state: BatchState, outcome: DraftOutcome) -> None:
        """Let the memory learn."""
        self.memory.learn(state, outcome)

    def learners(self) -> Sequence[Learner]:
        """Return the memory."""
        return (self.memory,)
