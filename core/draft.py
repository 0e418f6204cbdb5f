"""Drafts: trees of proposed tokens below the root, the last committed token. A chain is a tree with one branch.

Tensors over the scored positions are indexed by tree index: index 0 is the root, index i + 1 is draft node i.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polydraft.core.batched_state import cached_arange
from polydraft.core.tokens import batch_gather, batch_where


@dataclass(frozen=True)
class ParallelRowsLayout:
    """Layout of a draft that continues K open image rows of W tokens each (`core.drafters.jacobi.parallel_rows`).

    w is the number of guesses per open image row and pass, N the number of nodes, and M the number of KV slots that the
    draft uses. The N + 1 scored positions are the root and the nodes. A token is settled once a pass has accepted it,
    even if it is not committed because earlier tokens are missing.
    """

    ids: Tensor  # [B, K, W] settled token ids, then guesses
    num_settled: Tensor  # [B, K] number of settled ids
    num_guesses: Tensor  # [B, K] number of guesses after the settled ids
    was_drafted: Tensor  # [B, K, W] bool, settled ids that were accepted guesses
    num_committed: Tensor  # [B] number of committed ids of the first open image row
    verified: Tensor  # [B, K, w + 1] bool, scored positions whose target token is used
    starts_at_root: Tensor  # [B] bool, the first scored position is the root
    kv_slots: Tensor  # [B, N+1] KV slot of every scored position, counted from the root's, which is 0
    depth: Tensor  # [B, N+1] distance from the root
    attention_mask: Tensor  # [B, N+1, M] bool, KV slots from the root's on that every scored position attends to


@dataclass(frozen=True)
class Draft:
    """One draft tree per batch row."""

    tokens: Tensor  # [B, N] int64 ids of the nodes (without the root), or [B, N, C] latents
    parents: Tensor  # [B, N] int64, index of the parent node, smaller than the node's own; -1 for the root
    valid: Tensor  # [B, N] bool, False where a row has fewer nodes
    max_depth: int  # upper bound of the depth of all nodes, known without reading from the device
    is_chain: bool = False  # every row is a chain in order, so no KV entry moves when it is committed
    drafter_passes: int = 0  # forward passes of the drafter's network
    # How the tokens were drawn. For ids: [B, N+1, V] log probabilities that the children of every tree index were
    # drawn from, in the order of their node indices; None where they were picked deterministically (a one-hot
    # distribution). For latents: the sampled trajectories that led to them (`core.continuous.denoising`).
    q: Any = None
    template: Draft | None = None  # draft with the same parents, whose ancestor mask and depths are reused
    parallel_rows: ParallelRowsLayout | None = None  # set where positions and attention do not follow from `parents`
    # [B, N] estimated probability that a node is accepted with all its ancestors, never above its parent's and 0 for
    # invalid nodes; None where the drafter has no estimate. Nodes that do not pay are dropped (`core.methods.budget`).
    path_probs: Tensor | None = None

    @staticmethod
    def from_chain(
        tokens: Tensor, valid: Tensor | None = None, drafter_passes: int = 0, q: Any = None,
        path_probs: Tensor | None = None,
    ) -> Draft:  # fmt: skip
        """Build a chain: every node is the child of the one before it.

        Args:
            tokens (Tensor): `[B, N]` ids or `[B, N, C]` latents.
            valid (Tensor | None): `[B, N]` bool; an invalid node invalidates all that follow it. None: all are valid.
            drafter_passes (int): forward passes of the drafter's network.
            q (Any): distribution that the tokens were drawn from; see the field `q`.
            path_probs (Tensor | None): `[B, N]` estimated acceptance; see the field `path_probs`.
        """
        num_rows, num_nodes = tokens.shape[:2]
        parents = torch.arange(-1, num_nodes - 1, device=tokens.device).expand(num_rows, num_nodes)
        valid = torch.ones_like(parents, dtype=torch.bool) if valid is None else valid.cumprod(1).bool()
        return Draft(
            tokens, parents, valid, max_depth=num_nodes, is_chain=True, drafter_passes=drafter_passes, q=q,
            path_probs=path_probs,
        )  # fmt: skip

    @staticmethod
    def empty(like: Tensor) -> Draft:
        """Build a draft without nodes (plain decoding) with the batch size and type of the tokens `like` `[B, …]`."""
        return Draft.from_chain(like[:, :0])

    def with_passes(self, drafter_passes: int, q: Any = None) -> Draft:
        """Return a copy that records the drafter's passes and the distribution its tokens were drawn from."""
        return replace(self, drafter_passes=drafter_passes, q=q)

    def truncate_chain(self, num_nodes: int) -> Draft:
        """Return the first `num_nodes` nodes of this chain; it must not have a `q`."""
        assert self.is_chain and self.q is None
        path_probs = None if self.path_probs is None else self.path_probs[:, :num_nodes]
        return replace(
            self, tokens=self.tokens[:, :num_nodes], parents=self.parents[:, :num_nodes],
            valid=self.valid[:, :num_nodes], max_depth=num_nodes, path_probs=path_probs,
        )  # fmt: skip

    def select_nodes(self, nodes: Tensor) -> Draft:
        """Return the draft that consists of some nodes of this tree; it must not have a `q`.

        Args:
            nodes (Tensor): `[B, M]` node indices, ascending in every batch row; the parents of valid nodes are among
                them.
        """
        assert self.q is None
        new_index = cached_arange(nodes.shape[1], nodes.device)  # [M]
        # tree index in this draft -> node index in the result; the root's entry stays -1
        index_map = nodes.new_full((len(nodes), self.size + 1), -1).scatter_(1, nodes + 1, new_index.expand_as(nodes))
        tokens, valid = batch_gather(self.tokens, nodes), self.valid.gather(1, nodes)
        parents = index_map.gather(1, self.parents.gather(1, nodes) + 1)
        path_probs = None if self.path_probs is None else self.path_probs.gather(1, nodes)
        return replace(
            self, tokens=tokens, parents=parents, valid=valid, max_depth=min(self.max_depth, nodes.shape[1]),
            is_chain=self.is_chain, template=None, path_probs=path_probs,
        )  # fmt: skip

    @cached_property
    def ranked_nodes(self) -> tuple[Tensor, Tensor]:
        """Return `path_probs` in descending order, and the nodes that have them, both `[B, N]`.

        A parent has no smaller probability than its children; of equal ones the earlier, so the parent, comes first.
        """
        assert self.path_probs is not None
        ranked = self.path_probs.sort(dim=1, descending=True, stable=True)
        return ranked.values, ranked.indices

    def keep_likeliest(self, num_nodes: int) -> Draft:
        """Return the `num_nodes` nodes with the highest `path_probs` of every batch row, in the order of this draft."""
        if num_nodes >= self.size:
            return self
        if self.is_chain:
            return self.truncate_chain(num_nodes)
        if num_nodes == 0:
            return Draft.empty(self.tokens).with_passes(self.drafter_passes)
        return self.select_nodes(self.ranked_nodes[1][:, :num_nodes].sort(1).values)

    def with_branches(self, tree: Draft, parent: Tensor | None = None) -> Draft:
        """Return this draft with the nodes of `tree` after its own; acceptance is estimated if it is in both.

        Args:
            tree (Draft): Draft of the same batch rows.
            parent (Tensor | None): `[B, 1]` node of this draft that takes the place of the root of `tree`, -1 for this
                draft's root; None: the root in every batch row.
        """
        below = -1 if parent is None else parent
        parents = torch.where(tree.parents < 0, below, tree.parents + self.size)
        path_probs = None
        if self.path_probs is not None and tree.path_probs is not None:
            path_probs = torch.cat([self.path_probs, tree.path_probs], 1)
        return Draft(
            torch.cat([self.tokens, tree.tokens], 1),
            torch.cat([self.parents, parents], 1),
            torch.cat([self.valid, tree.valid], 1),
            max_depth=max(self.max_depth, tree.max_depth + (0 if parent is None else self.max_depth)),
            drafter_passes=self.drafter_passes + tree.drafter_passes,
            path_probs=path_probs,
        )

    def without_invalid_q(self) -> Draft:
        """Return this draft of token ids, with nodes invalidated whose `q` comes from NaN or infinite logits.

        `q` has the log probabilities that the ids were drawn from. A ratio test against NaN would mean nothing. Whether
        logits are finite depends on the ancestors of a node alone and not on the id that was drawn, so exact methods
        stay exact.
        """
        batch_rows = cached_arange(len(self.tokens), self.tokens.device)[:, None]
        log_q = self.q[batch_rows, self.parents + 1, self.tokens]  # [B, N] of every node's own token
        return replace(self, valid=self.valid & (log_q > -torch.inf))  # False for NaN, too

    def prepend_chain(self, chain: Tensor, chain_lens: Tensor, max_nodes: int) -> Draft:
        """Return drafts that put a chain of accepted tokens between the root and the tree of every batch row.

        Every batch row has `max_nodes` nodes in the result: its chain, then as many nodes of its tree as still fit, so
        that its draft does not depend on the chains of other batch rows.

        Args:
            chain (Tensor): `[B, M]` (latents: `[B, M, C]`) tokens of chains of up to M tokens.
            chain_lens (Tensor): `[B]` number of tokens of `chain` that each batch row uses.
            max_nodes (int): number of nodes of the result, at least the number of nodes N of this draft.
        """
        index = cached_arange(max_nodes, chain.device).expand(len(chain), -1)  # [B, max_nodes], of the new nodes
        in_chain = index < chain_lens[:, None]
        tree_node = index - chain_lens[:, None]  # node of the old tree that becomes the new node
        # clamped so that every index can be gathered; entries outside are replaced by the chain's or are invalid
        source = tree_node.clamp(0, self.size - 1)
        chain_tokens = batch_gather(chain, index.clamp(max=chain.shape[1] - 1))
        tokens = batch_where(in_chain, chain_tokens, batch_gather(self.tokens, source))
        # Children of the old root (parent -1) become children of the chain's last node, chain_lens - 1.
        parents = torch.where(in_chain, index - 1, self.parents.gather(1, source) + chain_lens[:, None])
        valid = in_chain | (self.valid.gather(1, source) & (tree_node < self.size))
        path_probs = self.path_probs
        if path_probs is not None:  # the tokens of the chain are sure to be accepted
            path_probs = torch.where(in_chain, 1.0, path_probs.gather(1, source) * valid)
        max_depth = min(max_nodes, self.max_depth + chain.shape[1])
        return replace(
            self, tokens=tokens, parents=parents, valid=valid, max_depth=max_depth, template=None,
            path_probs=path_probs,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Return the number of nodes N, the root excluded."""
        return self.tokens.shape[1]

    @property
    def num_slots(self) -> int:
        """Return the number of KV slots that the root and the nodes need."""
        return self.size + 1 if self.parallel_rows is None else self.parallel_rows.attention_mask.shape[2]

    @cached_property
    def ancestor_mask(self) -> Tensor:
        """Return the tree attention mask, `[B, N+1, N+1]` bool: entry (i, j) is true if j is i or an ancestor of i."""
        num_rows, num_nodes = self.tokens.shape[:2]
        if self.template is not None:  # a tree that all batch rows share, whose mask is cached
            return self.template.ancestor_mask.expand(num_rows, -1, -1)
        if self.is_chain:
            causal_mask = torch.ones(num_nodes + 1, num_nodes + 1, dtype=torch.bool, device=self.tokens.device).tril()
            return causal_mask.expand(num_rows, -1, -1)
        # 1 for every index itself and its parent. Each squaring doubles the distance covered (2, 4, 8, … generations),
        # and values are kept at 0 and 1. Floats are used because `bmm` multiplies no bools.
        is_ancestor = torch.eye(num_nodes + 1, device=self.tokens.device).repeat(num_rows, 1, 1)
        is_ancestor[:, 1:].scatter_(2, (self.parents + 1)[..., None], 1)
        for _ in range(max(1, self.max_depth).bit_length()):
            is_ancestor = torch.bmm(is_ancestor, is_ancestor).clamp_(max=1)
        return is_ancestor > 0

    @cached_property
    def root_paths(self) -> Tensor:
        """Return the path of tree indices from the root to every tree index, `[B, N+1, D+1]`; padding is undefined.

        A path ends with the index itself. D is the largest depth. EAGLE calls these `retrieve_indices`.
        """
        num_rows, indices = len(self.tokens), cached_arange(self.size + 1, self.tokens.device)
        if self.template is not None:
            return self.template.root_paths.expand(num_rows, -1, -1)
        if self.is_chain:
            return indices.expand(num_rows, len(indices), -1)  # the path to index i is 0 … i, then padding
        # An ancestor is written to the entry of its depth, any other index to an extra last entry, which is cut off.
        entry = torch.where(self.ancestor_mask, self.num_ancestors[:, None], len(indices))  # [B, N+1, N+1]
        paths = indices.new_zeros(num_rows, len(indices), len(indices) + 1)
        return paths.scatter_(2, entry, indices.expand_as(entry))[..., : min(self.size, self.max_depth) + 1]

    def path_tokens(self, roots: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens on the path from the root to every tree index; padding is undefined.

        Args:
            roots (Tensor): `[B, 1]` (latents: `[B, 1, C]`) root tokens, the last committed ones.

        Returns:
            Tensor: `[B, N+1, D+1]` (latents: `[B, N+1, D+1, C]`) tokens of the paths, the root first.
            Tensor: `[B, N+1]` number of tokens of each path after the root.
        """
        tree_tokens = torch.cat([roots, self.tokens], 1)  # [B, N+1, …]
        if self.is_chain:  # the path to index i are the tokens 0 … i, and what follows is padding
            return tree_tokens[:, None].expand(-1, tree_tokens.shape[1], *tree_tokens.shape[1:]), self.num_ancestors
        tokens = batch_gather(tree_tokens, self.root_paths.flatten(1)).unflatten(1, self.root_paths.shape[1:])
        return tokens, self.num_ancestors

    @property
    def depth(self) -> Tensor:
        """Return the distance of every tree index from the root in positions, `[B, N+1]` int64; 0 for the root."""
        return self.num_ancestors if self.parallel_rows is None else self.parallel_rows.depth

    @cached_property
    def num_ancestors(self) -> Tensor:
        """Return the number of ancestors of every tree index, `[B, N+1]` int64."""
        if self.template is not None:
            return self.template.num_ancestors.expand(len(self.tokens), -1)
        if self.is_chain:
            return cached_arange(self.size + 1, self.tokens.device).expand(len(self.tokens), -1)
        return self.ancestor_mask.sum(-1) - 1


def max_without_sync(counts: Tensor, upper_bound: int) -> int:
    """Return the maximum of `counts` on the CPU; on accelerators `upper_bound`, which needs no device sync.

    On accelerators, tensor shapes that depend on it stay the same from pass to pass, as CUDA graphs require.
    """
    return int(counts.max()) if counts.device.type == "cpu" else upper_bound


def all_equal_without_sync(flags: Tensor) -> bool | None:
    """Return the bool that all `flags` (any shape) equal; None if they differ, and on accelerators (no device sync)."""
    if flags.device.type != "cpu":
        return None
    values = set(flags.flatten().tolist())
    return values.pop() if len(values) == 1 else None
