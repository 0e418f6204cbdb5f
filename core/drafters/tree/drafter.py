"""Drafters that grow a draft tree from their own token distributions, level by level, whatever network predicts them.

Tokens that were accepted but whose KV entries are not contiguous yet (identical methods commit only nodes that stand
where plain decoding would put them) are the pending prefix of the next draft: the tree grows under the last of them, so
no accepted token is lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.batched_state import cached_arange, next_positions
from polydraft.core.draft import Draft, max_without_sync
from polydraft.core.drafters.base import DraftOutcome
from polydraft.core.drafters.network.state import DrafterCacheState
from polydraft.core.drafters.tree.candidates import DraftTree
from polydraft.core.drafters.tree.shapes import CandidateRanking, ChildScores, TreeShape
from polydraft.core.model.cache import KVCache
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler, TokenDistribution
from polydraft.core.target.causal import CausalTarget, PrefillOutput
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import batch_gather


@dataclass(frozen=True)
class PendingPrefix:
    """Root and pending tokens of every row, from which all nodes of its draft tree descend."""

    ids: Tensor  # [B, 1 + M] token ids of the root, then the pending tokens
    num_pending: Tensor  # [B] how many of the M are pending

    @staticmethod
    def from_state(drafter_state: DrafterCacheState, max_pending: int) -> PendingPrefix:
        """Return the pending prefix of every row; `max_pending` bounds its length on accelerators."""
        num_pending = drafter_state.num_pending
        index = cached_arange(max_without_sync(num_pending, max_pending) + 1, drafter_state.new_tokens.device)
        from_root = (drafter_state.num_committed - 1)[:, None] + index.clamp(max=num_pending[:, None])
        return PendingPrefix(drafter_state.new_tokens.gather(1, from_root), num_pending)

    @property
    def is_root_only(self) -> bool:
        """Return whether no row has pending tokens."""
        return self.ids.shape[1] == 1

    def as_draft(self) -> Draft:
        """Return the pending tokens as a chain, with nothing under it."""
        ids = self.ids[:, 1:]
        return Draft.from_chain(ids, cached_arange(ids.shape[1], ids.device) < self.num_pending[:, None])

    def positions(self, state: BatchState, levels: int) -> Tensor:
        """Return the position of the nodes of each of `levels` levels, `[B, levels]`."""
        return next_positions(state.num_generated + self.num_pending, levels)

    def ranking_noise(self, noise: Noise, state: BatchState, levels: int) -> Tensor | None:
        """Return the Gumbel noise that ranks the nodes of each level, `[B, levels, V]`; None if all rows are greedy."""
        # the noise begins at the token after the root
        window = noise.draft_positions(state.num_generated, self.ids.shape[1] - 1 + levels).gumbel()
        if window is None or self.is_root_only:
            return window
        return batch_gather(window, next_positions(self.num_pending, levels))

    def initial_paths(self, levels: int) -> Tensor:
        """Return the prefix padded for `levels` further ids, `[B, 1, 1 + M + levels]`; see `GenerationContext`."""
        return F.pad(self.ids[:, None], (0, levels))

    def extend_paths(self, paths: Tensor, tree: DraftTree) -> Tensor:
        """Return the paths to the frontier nodes of `tree`, `[B, W, …]`, from the paths to their parents."""
        index = (self.num_pending + len(tree.levels))[:, None, None].expand(-1, tree.width, -1)
        return batch_gather(paths, tree.parent_index).scatter_(2, index, tree.frontier_ids[..., None])


class TreeDrafter(ABC):
    """Base class of drafters that grow draft trees of token ids.

    Subclasses predict the children of the frontier nodes. What they keep between levels (hidden states, logits) is the
    level state, which this class only passes on.

    Args:
        target (CausalTarget): Target that the drafts are for.
        tree_shape (TreeShape): Rule that decides which nodes a draft has.
        ranking (CandidateRanking): Ranking of the children of a node.
        vocab_subset (Tensor | None): [K] token ids that may be drafted; None for all.
    """

    def __init__(
        self, target: CausalTarget, tree_shape: TreeShape, ranking: CandidateRanking,
        vocab_subset: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.target, self.tree_shape, self.ranking, self.vocab_subset = target, tree_shape, ranking, vocab_subset

    def num_passes(self, levels: int) -> int:
        """Return the number of network passes that a draft of `levels` levels costs."""
        return 1

    @abstractmethod
    def prefill(self, cache: KVCache | None, prompts: PrefillOutput) -> tuple[KVCache, Tensor]:
        """Process prompts up to their roots in new rows of `cache` (None: make a cache).

        Returns:
            tuple[KVCache, Tensor]: the cache, and how many of its entries are kept, [B, R].
        """

    @abstractmethod
    def forward_committed(
        self, state: BatchState, drafter_state: DrafterCacheState, tokens: Tensor, hidden_states: Tensor
    ) -> Any:
        """Process the tokens that the drafter has not seen yet and return the level state of the last of them.

        Args:
            state (BatchState): Committed state of the target.
            drafter_state (DrafterCacheState): State of the drafter; its `num_new` says how many tokens of a row count.
            tokens (Tensor): [B, C] token ids.
            hidden_states (Tensor): [B, R, C, D] target hidden states of the position before each token.
        """

    @abstractmethod
    def forward_children(self, level_state: Any, drafter_state: DrafterCacheState, tree: DraftTree) -> Any:
        """Return the level state of the frontier nodes of `tree`, from that of the level before."""

    @abstractmethod
    def logits(self, level_state: Any, state: BatchState, tree: DraftTree, positions: Tensor) -> Tensor:
        """Return draft logits for the children of the frontier nodes, after guidance.

        Args:
            level_state (Any): Level state of the frontier nodes, or of the last pending token.
            state (BatchState): Committed state of the target.
            tree (DraftTree): Tree grown so far.
            positions (Tensor): [B, 1] position of the children.

        Returns:
            Tensor: [B, W, V], or [B, W, K] over `vocab_subset`.
        """

    def restricted_ids(self, sampler: Sampler, tree_shape: TreeShape) -> Tensor | None:
        """Return the token ids to which history-free distributions can be restricted; None for no restriction."""
        subset = self.vocab_subset
        is_enough = subset is not None and len(subset) >= tree_shape.width and sampler.constraints is None
        return subset if is_enough else None

    def scatter_to_vocab(self, logits: Tensor) -> Tensor:
        """Return logits over the whole vocabulary, `[B, W, V]`; -inf for ids that may not be drafted."""
        if self.vocab_subset is None:
            return logits
        full = logits.new_full((*logits.shape[:-1], self.target.vocab_size), -torch.inf)
        return full.index_copy_(-1, self.vocab_subset, logits)

    def begin(self, drafter_state: DrafterCacheState | None, prompts: PrefillOutput) -> DrafterCacheState:
        """Process prompts up to their roots, which are new tokens of the first draft."""
        cache, num_cached = self.prefill(None if drafter_state is None else drafter_state.cache, prompts)
        return DrafterCacheState.with_prompts(drafter_state, cache, num_cached, prompts)

    def draft(self, state: BatchState, drafter_state: DrafterCacheState, sampler: Sampler, noise: Noise) -> Draft:
        """Process new tokens, then grow a tree under the last of them."""
        num_new = max_without_sync(drafter_state.num_new, drafter_state.new_tokens.shape[1])
        new_tokens, new_hidden = drafter_state.new_tokens[:, :num_new], drafter_state.new_hidden_states[:, :, :num_new]
        level_state = self.forward_committed(state, drafter_state, new_tokens, new_hidden)
        shape = self.tree_shape.for_batch(len(state))
        prefix = PendingPrefix.from_state(drafter_state, self.tree_shape.depth)
        positions = prefix.positions(state, shape.depth)
        level_noise = prefix.ranking_noise(noise, state, shape.depth)
        grammar_states = sampler.precomputed_states(path_context(state, prefix.ids[:, None], positions))
        needs_context = sampler.depends_on_history(state.sampling_tensors, grammar_states)
        paths = prefix.initial_paths(shape.depth) if needs_context else None
        ids = self.restricted_ids(sampler, shape) if noise.uses_shared_noise and paths is None else None
        if ids is not None:
            sampler = sampler.restrict_to(ids)
            level_noise = None if level_noise is None else level_noise.index_select(2, ids)
        process_logits = sampler.draft_distribution if noise.uses_shared_noise else sampler
        tree, distributions = DraftTree(len(state), drafter_state.new_tokens.device), []
        states_of_levels, noise_of_levels = (split_levels(part, shape.depth) for part in (grammar_states, level_noise))
        levels = zip(positions.split(1, 1), states_of_levels, noise_of_levels, strict=True)
        for position, grammar_state, gumbel in levels:
            if tree.levels:
                level_state = self.forward_children(level_state, drafter_state, tree)
                paths = None if paths is None else prefix.extend_paths(paths, tree)
            context = None if paths is None else path_context(state, paths, position.expand(-1, tree.width))
            logits = self.logits(level_state, state, tree, position)
            logits = self.scatter_to_vocab(logits) if ids is None else logits
            distribution = process_logits(logits, state.sampling_tensors, context, grammar_state)
            distributions.append(distribution.with_temperature(self.ranking.temperature))
            if not shape.grow(tree, ChildScores(distributions[-1].logits, gumbel, ids), self.ranking):
                break
        passes = self.num_passes(len(tree.levels))
        if noise.uses_shared_noise:  # the order of siblings means nothing, so the best path may lead
            draft = shape.best_path_first(tree).with_passes(passes)
            if prefix.is_root_only:
                return draft
            return draft.prepend_stem(prefix.ids[:, 1:], prefix.num_pending, shape.max_nodes)
        draft, kept = shape.as_sampled(tree)
        if not (self.ranking.draws and noise.any_sampled):
            return draft.with_passes(passes)
        return draft.with_passes(passes, draft_log_probs(tree, kept, distributions)).without_invalid_q()

    def observe(self, state: BatchState, drafter_state: DrafterCacheState, outcome: DraftOutcome) -> None:
        drafter_state.observe(outcome)


def split_levels(columns: Tensor | None, levels: int) -> Sequence[Tensor | None]:
    """Split columns `[B, levels, …]` into `[B, 1, …]` of every level; None gives None for every level."""
    return [None] * levels if columns is None else columns.split(1, 1)


def draft_log_probs(tree: DraftTree, kept: Tensor, distributions: list[TokenDistribution]) -> Tensor:
    """Return log q at every column of a draft.

    Args:
        tree (DraftTree): Tree that was grown.
        kept (Tensor): [B, N] candidates that the draft holds.
        distributions (list[TokenDistribution]): Distributions that each level's children were drawn from.

    Returns:
        Tensor: [B, N+1, V] log probabilities, zeros at columns without children.
    """
    columns = tree.expanded_draft_columns(kept)
    log_q = torch.cat([distribution.log_probs for distribution in distributions], 1)
    scattered = log_q.new_zeros(len(log_q), kept.shape[1] + 2, log_q.shape[-1])
    return scattered.scatter_(1, columns[..., None].expand_as(log_q), log_q)[:, :-1]


def path_context(state: BatchState, paths: Tensor, positions: Tensor) -> GenerationContext:
    """Return the generation context of children of the last node of `paths` `[B, W, D]`, at `positions` `[B, W]`."""
    depth = positions - state.num_generated[:, None]
    return GenerationContext(state.tokens, state.num_tokens, paths, depth, positions, state.max_new_tokens)
