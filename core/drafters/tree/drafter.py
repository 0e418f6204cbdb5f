"""Drafters that grow a draft tree from their own token distributions, level by level, whatever network predicts them.

Tokens that were accepted but whose KV entries are not contiguous yet (identical methods commit only nodes that stand
where plain decoding would put them) are the pending prefix of the next draft: the tree grows under the last of them, so
no accepted token is lost.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.batched_state import cached_arange, next_positions
from polydraft.core.draft import Draft, max_without_sync
from polydraft.core.drafters.base import Drafter, DraftOutcome, MissedTokens
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
    """Root of every sequence and its pending tokens, under the last of which its draft tree grows.

    Pending tokens were accepted by the last verification, but are not committed yet because their KV entries are not
    contiguous. They come first in the next draft.
    """

    ids: Tensor  # [B, 1 + M] token ids of the root, then the pending tokens
    num_pending: Tensor  # [B] how many of the M are pending

    @staticmethod
    def from_state(drafter_state: DrafterCacheState, max_pending: int) -> PendingPrefix:
        """Return the root and the pending tokens of every batch row.

        Args:
            drafter_state (DrafterCacheState): State whose new tokens include the root and the pending tokens.
            max_pending (int): Upper bound of `num_pending`, the padded length on accelerators (avoids a device sync).
        """
        num_pending = drafter_state.num_pending
        index = cached_arange(max_without_sync(num_pending, max_pending) + 1, drafter_state.new_tokens.device)
        # the root is the last committed one of the new tokens, and pending tokens follow it; rows with fewer pending
        # tokens than others are padded with copies of the last one
        index_from_root = (drafter_state.num_committed - 1)[:, None] + index.clamp(max=num_pending[:, None])
        return PendingPrefix(drafter_state.new_tokens.gather(1, index_from_root), num_pending)

    @property
    def is_root_only(self) -> bool:
        """True if no sequence has pending tokens."""
        return self.ids.shape[1] == 1

    def as_draft(self) -> Draft:
        """Return a draft of the pending tokens alone, as a chain."""
        ids = self.ids[:, 1:]  # without the root
        return Draft.from_chain(ids, cached_arange(ids.shape[1], ids.device) < self.num_pending[:, None])

    def positions(self, state: BatchState, levels: int) -> Tensor:
        """Return the position among the generated tokens of the nodes of every tree level, `[B, levels]`."""
        # the tree grows under the last pending token, so its first level is `num_pending` positions further
        return next_positions(state.num_generated + self.num_pending, levels)

    def ranking_noise(self, noise: Noise, state: BatchState, levels: int) -> Tensor | None:
        """Return the Gumbel noise that ranks the candidates of each level, `[B, levels, V]`; None if all are greedy."""
        # noise of all positions after the root (M pending tokens, then levels); the tree's first level is `num_pending`
        # positions further
        gumbel = noise.draft_positions(state.num_generated, self.ids.shape[1] - 1 + levels).gumbel()
        if gumbel is None or self.is_root_only:
            return gumbel
        return batch_gather(gumbel, next_positions(self.num_pending, levels))

    def initial_paths(self, levels: int) -> Tensor:
        """Return root and M pending ids with room for `levels` tree levels, `[B, 1, 1 + M + levels]` (one path)."""
        return F.pad(self.ids[:, None], (0, levels))

    def extend_paths(self, paths: Tensor, tree: DraftTree) -> Tensor:
        """Return the ids on the path from the root to each frontier node of `tree` (the nodes whose children are next).

        Args:
            paths (Tensor): [B, W', 1 + M + levels] ids of the root, of up to M pending tokens, and of a node per level,
                for the W' frontier nodes of the level before.
            tree (DraftTree): Tree grown so far.

        Returns:
            Tensor: [B, W, 1 + M + levels]: each parent's path with the node's id added.
        """
        # index of a level-l node in its path: after the root (0) and this row's pending tokens
        index = (self.num_pending + len(tree.levels))[:, None, None].expand(-1, tree.width, -1)
        return batch_gather(paths, tree.parent_index).scatter_(2, index, tree.frontier_ids[..., None])


@dataclass(frozen=True)
class TreeGrowth:
    """Shape, noise and sampling of a tree that is about to grow."""

    shape: TreeShape
    prefix: PendingPrefix
    positions: Tensor  # [B, levels] of the nodes among the generated tokens
    sampler: Sampler  # for `subset_ids` alone, if they are given
    grammar_states: Sequence[Tensor | None]  # [B, 1] of every level, if they are precomputed
    noise: Tensor | None  # [B, levels, V] Gumbel noise; None if all rows are greedy
    paths: Tensor | None  # token ids from the root on; None unless the sampler depends on them
    subset_ids: Tensor | None  # [K] token ids that logits are restricted to; None: all ids
    uses_shared_noise: bool


class TreeDrafter(Drafter):
    """Base class of drafters that grow draft trees of token ids.

    A tree grows level by level: subclasses return draft logits for the children of the frontier nodes (the nodes whose
    children are added next), and the tree shape selects among them. What a subclass computes for the frontier nodes
    and needs again for the next level (hidden states or logits) is its level state, which this class only passes on.

    Args:
        target (CausalTarget): Target that the drafts are for.
        tree_shape (TreeShape): Rule that decides which nodes a draft has.
        ranking (CandidateRanking): Ranking of the children of a node.
        vocab_subset (Tensor | None): [K] token ids that may be drafted; None for all.
    """

    follows_hidden_states = True

    def __init__(
        self, target: CausalTarget, tree_shape: TreeShape, ranking: CandidateRanking,
        vocab_subset: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.target: CausalTarget = target
        self.tree_shape: TreeShape = tree_shape
        self.ranking: CandidateRanking = ranking
        self.vocab_subset: Tensor | None = vocab_subset

    def num_passes(self, levels: int) -> int:
        """Return the number of network passes that a draft of `levels` levels costs, for statistics."""
        return 1

    @abstractmethod
    def prefill(self, cache: KVCache | None, prompts: PrefillOutput) -> tuple[KVCache, Tensor]:
        """Process prompts up to the token before their roots (last tokens) in new batch rows of a KV cache.

        Args:
            cache (KVCache | None): The drafter's cache; None: create one.
            prompts (PrefillOutput): What the target computed for the prompts.

        Returns:
            tuple[KVCache, Tensor]: the cache, and the number of its positions that are valid, [B, R] for R guidance
                branches.
        """

    @abstractmethod
    def forward_committed(
        self, state: BatchState, drafter_state: DrafterCacheState, tokens: Tensor, hidden_states: Tensor
    ) -> Any:
        """Process the tokens that the drafter has not processed yet and return the level state of the last of them.

        Args:
            state (BatchState): Committed state of the target.
            drafter_state (DrafterCacheState): State of the drafter; `num_new` is the number of valid tokens per row.
            tokens (Tensor): [B, C] ids of the new tokens, right-padded to the C of the longest row.
            hidden_states (Tensor): [B, R, C, D] target hidden states of the position before each token, for R guidance
                branches.

        Returns:
            Any: Level state, from which `logits` predicts the first level of the tree.
        """

    @abstractmethod
    def forward_children(self, level_state: Any, drafter_state: DrafterCacheState, tree: DraftTree) -> Any:
        """Return the level state of the frontier nodes of `tree`.

        Args:
            level_state (Any): Level state of the frontier nodes of the level before.
            drafter_state (DrafterCacheState): State of the drafter.
            tree (DraftTree): Tree grown so far; `frontier_ids` and `parent_index` are `[B, W]` for W frontier nodes.
        """

    @abstractmethod
    def logits(self, level_state: Any, state: BatchState, tree: DraftTree, positions: Tensor) -> Tensor:
        """Return draft logits for the children of the W frontier nodes, after classifier-free guidance.

        Args:
            level_state (Any): Level state of the frontier nodes; before the first level, of the last accepted token.
            state (BatchState): Committed state of the target.
            tree (DraftTree): Tree grown so far.
            positions (Tensor): [B, 1] position of the children among the generated tokens.

        Returns:
            Tensor: [B, W, V], or [B, W, K] over `vocab_subset`.
        """

    def restricted_ids(self, sampler: Sampler, tree_shape: TreeShape) -> Tensor | None:
        """Return the token ids `[K]` that logits can be restricted to while a tree is grown; None: use all ids.

        That needs a vocabulary subset with enough ids for the children of a node, and no constraints of the checkpoint,
        because those are written for full vocabularies.
        """
        subset = self.vocab_subset
        can_restrict = subset is not None and len(subset) >= tree_shape.width and sampler.constraints is None
        return subset if can_restrict else None

    def scatter_to_vocab(self, logits: Tensor) -> Tensor:
        """Return logits `[B, W, K]` over `vocab_subset` as logits over the vocabulary, `[B, W, V]`, -inf elsewhere."""
        if self.vocab_subset is None:
            return logits
        full = logits.new_full((*logits.shape[:-1], self.target.vocab_size), -torch.inf)
        return full.index_copy_(-1, self.vocab_subset, logits)

    def begin(self, drafter_state: DrafterCacheState | None, prompts: PrefillOutput) -> DrafterCacheState:
        """Process prompts up to the token before their roots (last tokens), and append their rows to the state."""
        cache, num_cached = self.prefill(None if drafter_state is None else drafter_state.cache, prompts)
        return DrafterCacheState.with_prompts(drafter_state, cache, num_cached, prompts)

    def draft(self, state: BatchState, drafter_state: DrafterCacheState, sampler: Sampler, noise: Noise) -> Draft:
        """Process the tokens accepted since the last draft, then grow a tree of draft tokens under the last of them.

        With shared noise (Gumbel noise keyed by position, which the verifier samples with, too) candidates are ranked
        with that noise. Else they are drawn with fresh noise, and the draft carries their log probabilities q.
        """
        # on accelerators the full width, so that no device sync is needed
        num_new = max_without_sync(drafter_state.num_new, drafter_state.new_tokens.shape[1])
        new_tokens, new_hidden = drafter_state.new_tokens[:, :num_new], drafter_state.new_hidden_states[:, :, :num_new]
        level_state = self.forward_committed(state, drafter_state, new_tokens, new_hidden)
        shape = self.tree_shape.for_batch(len(state))
        # accepted tokens that are not committed yet; they are drafted again, in front of the tree
        prefix = PendingPrefix.from_state(drafter_state, self.tree_shape.depth)
        positions = prefix.positions(state, shape.depth)
        level_noise = prefix.ranking_noise(noise, state, shape.depth)
        grammar_states = sampler.precomputed_states(path_context(state, prefix.ids[:, None], positions))
        # paths of token ids are only kept where the sampler (repetition penalty, grammar) depends on them
        needs_context = sampler.depends_on_history(state.sampling_tensors, grammar_states)
        paths = prefix.initial_paths(shape.depth) if needs_context else None
        # Work on the subset's ids alone if nothing needs real token ids: path-dependent processors do, and so does q.
        subset_ids = self.restricted_ids(sampler, shape) if noise.uses_shared_noise and paths is None else None
        if subset_ids is not None:
            sampler = sampler.restrict_to(subset_ids)
            level_noise = None if level_noise is None else level_noise.index_select(2, subset_ids)
        growth = TreeGrowth(
            shape, prefix, positions, sampler, split_levels(grammar_states, shape.depth), level_noise, paths,
            subset_ids, noise.uses_shared_noise,
        )  # fmt: skip
        tree, distributions = self.grow_tree(state, drafter_state, level_state, growth)
        passes = self.num_passes(len(tree.levels))
        if noise.uses_shared_noise:  # the order of siblings does not matter to verification: main path first
            draft = shape.draft_main_path_first(tree).with_passes(passes)
            if prefix.is_root_only:
                return draft
            return draft.prepend_chain(prefix.ids[:, 1:], prefix.num_pending, shape.max_nodes)
        # verification tests siblings in the order they were drawn
        draft, draft_candidates = shape.draft_in_sampled_order(tree)
        if not (self.ranking.draws and noise.any_sampled):  # picked without random numbers: there is no q
            return draft.with_passes(passes)
        return draft.with_passes(passes, draft_log_probs(tree, draft_candidates, distributions)).without_invalid_q()

    def grow_tree(
        self, state: BatchState, drafter_state: DrafterCacheState, level_state: Any, growth: TreeGrowth
    ) -> tuple[DraftTree, list[TokenDistribution]]:
        """Grow a tree level by level.

        Args:
            state (BatchState): Committed state of the target.
            drafter_state (DrafterCacheState): State of the drafter.
            level_state (Any): Level state of the token that the tree grows under.
            growth (TreeGrowth): Shape, noise and sampling of the tree.

        Returns:
            The tree, and the draft distribution of every level; none are needed under shared noise.
        """
        shape, sampler, paths = growth.shape, growth.sampler, growth.paths
        # `draft_distribution` applies no top-k, top-p or min-p: they would only discard tokens that the target may
        # sample. A ratio test needs q after all filters, which is what calling the sampler returns.
        process_logits = sampler.draft_distribution if growth.uses_shared_noise else sampler
        tree, distributions = DraftTree(len(state), drafter_state.new_tokens.device), []
        noise_by_level = split_levels(growth.noise, shape.depth)
        levels = zip(growth.positions.split(1, 1), growth.grammar_states, noise_by_level, strict=True)
        for position, grammar_state, gumbel in levels:
            if tree.levels:
                level_state = self.forward_children(level_state, drafter_state, tree)
                paths = None if paths is None else growth.prefix.extend_paths(paths, tree)
            context = None if paths is None else path_context(state, paths, position.expand(-1, tree.width))
            logits = self.logits(level_state, state, tree, position)
            logits = self.scatter_to_vocab(logits) if growth.subset_ids is None else logits
            distribution = process_logits(logits, state.sampling_tensors, context, grammar_state)
            distributions.append(distribution.with_temperature(self.ranking.temperature))
            scores = ChildScores(distributions[-1].logits, gumbel, growth.subset_ids)
            if not shape.grow(tree, scores, self.ranking):
                break
        return tree, distributions

    def observe(self, state: BatchState, drafter_state: DrafterCacheState, outcome: DraftOutcome) -> None:
        """Record the accepted tokens in `drafter_state`, to be processed at the start of the next draft."""
        self.tree_shape.observe(outcome, drafter_state.num_pending)
        drafter_state.observe(outcome)

    def catch_up(self, state: BatchState, drafter_state: DrafterCacheState, missed: MissedTokens) -> None:
        """Record the missed tokens in `drafter_state`, to be processed at the start of the next draft."""
        drafter_state.catch_up(missed)


def split_levels(values: Tensor | None, levels: int) -> Sequence[Tensor | None]:
    """Split `values` `[B, levels, …]` into one tensor `[B, 1, …]` per tree level; None gives None for every level."""
    return [None] * levels if values is None else values.split(1, 1)


def draft_log_probs(tree: DraftTree, draft_candidates: Tensor, distributions: list[TokenDistribution]) -> Tensor:
    """Return log q, the draft distribution of the children of the root and of every node of a draft.

    Args:
        tree (DraftTree): Tree that was grown: M candidate nodes, of which the root and E others were expanded, that is,
            got children.
        draft_candidates (Tensor): [B, N] indices of the candidates that are kept in the draft, its N nodes.
        distributions (list[TokenDistribution]): Draft distribution of every level, at the expanded nodes of the level
            above it (the root for the first), whose children it predicts.

    Returns:
        Tensor: [B, N+1, V] log probabilities of the children by the tree index of the parent in the draft (0 is the
            root, i + 1 is node i). Nodes without children have zeros, which have no effect: verifiers use q only to
            test drafted children.
    """
    # [B, 1 + E] tree index in the draft of every expanded node; N + 1 for those that are not kept
    tree_indices = tree.expanded_draft_tree_indices(draft_candidates)
    log_q = torch.cat([distribution.log_probs for distribution in distributions], 1)  # [B, 1 + E, V]
    # N + 2 entries: the last, N + 1, collects the distributions of nodes that are not kept, and is cut off
    scattered = log_q.new_zeros(len(log_q), draft_candidates.shape[1] + 2, log_q.shape[-1])
    return scattered.scatter_(1, tree_indices[..., None].expand_as(log_q), log_q)[:, :-1]


def path_context(state: BatchState, paths: Tensor, positions: Tensor) -> GenerationContext:
    """Return the generation context (input of history-dependent sampling) for children of W nodes.

    Args:
        state (BatchState): Committed state of the target.
        paths (Tensor): [B, W, P] token ids from the root to each node, right-padded to P.
        positions (Tensor): [B, W] position of the children among the generated tokens.
    """
    depth = positions - state.num_generated[:, None]  # of the parents: tokens between the root and each child
    return GenerationContext(state.tokens, state.num_tokens, paths, depth, positions, state.max_new_tokens)
