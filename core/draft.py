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

    w is the number of guesses per open row and pass, C = N + 1 the number of scored positions.
    """

    ids: Tensor  # [B, K, W] settled token ids, then guesses
    num_settled: Tensor  # [B, K] how many of `ids` are settled
    num_guesses: Tensor  # [B, K] how many guesses follow the settled ones
    was_drafted: Tensor  # [B, K, W] bool, settled ids that were drafted before
    num_committed: Tensor  # [B] how many ids of the first open row are committed
    verified: Tensor  # [B, K, w + 1] bool, scored positions whose target token is used
    starts_at_root: Tensor  # [B] bool, the first scored position is the root
    kv_slots: Tensor  # [B, C] KV slot of every scored position, counted from the committed ones
    depth: Tensor  # [B, C] distance from the root
    attention_mask: Tensor  # [B, C, M] bool, uncommitted KV slots that every scored position attends to


@dataclass(frozen=True)
class Draft:
    """One draft tree per batch row."""

    tokens: Tensor  # [B, N] int64 ids of the nodes (without the root), or [B, N, C] latents
    parents: Tensor  # [B, N] int64, index of the parent node, smaller than the node's own; -1 for the root
    valid: Tensor  # [B, N] bool, False where a row has fewer nodes
    max_depth: int  # upper bound of the depth of all nodes, known without reading from the device
    is_chain: bool = False  # every row is a chain in order, so no KV entry moves when it is committed
    drafter_passes: int = 0  # network passes that the drafter spent on it
    # How the tokens were drawn. For ids: [B, N+1, V] log probabilities that the children of every tree index were
    # drawn from, in the order of their node indices; None where they were picked deterministically (a one-hot
    # distribution). For latents: the sampled trajectories that led to them (`core.continuous.denoising`).
    q: Any = None
    template: Draft | None = None  # draft with the same parents, whose ancestor mask and depths are reused
    parallel_rows: ParallelRowsLayout | None = None  # set where positions and attention do not follow from `parents`

    @staticmethod
    def from_chain(tokens: Tensor, valid: Tensor | None = None, drafter_passes: int = 0, q: Any = None) -> Draft:
        """Build a chain from `[B, N]` ids or `[B, N, C]` latents; an invalid node invalidates all that follow it."""
        rows, nodes = tokens.shape[:2]
        parents = torch.arange(-1, nodes - 1, device=tokens.device).expand(rows, nodes)
        valid = torch.ones_like(parents, dtype=torch.bool) if valid is None else valid.cumprod(1).bool()
        return Draft(tokens, parents, valid, nodes, is_chain=True, drafter_passes=drafter_passes, q=q)

    @staticmethod
    def empty(like: Tensor) -> Draft:
        """Build a draft without nodes for the rows of tokens `[B, …]`, which is plain decoding."""
        return Draft.from_chain(like[:, :0])

    def with_passes(self, drafter_passes: int, q: Any = None) -> Draft:
        """Return a copy that records the drafter's passes and the distribution its tokens were drawn from."""
        return replace(self, drafter_passes=drafter_passes, q=q)

    def without_invalid_q(self) -> Draft:
        """Return the draft of ids without nodes whose `q` comes from NaN or infinite logits.

        A ratio test against such a `q` would mean nothing. Whether it is valid depends on the ancestors of a node alone
        and not on the id that was drawn, so exact methods stay exact.
        """
        rows = cached_arange(len(self.tokens), self.tokens.device)[:, None]
        return replace(self, valid=self.valid & (self.q[rows, self.parents + 1, self.tokens] > -torch.inf))

    def prepend_stem(self, stem: Tensor, counts: Tensor, max_nodes: int) -> Draft:
        """Return the trees below chains: the first `counts[b]` ids of `stem` come between the root and the tree.

        Nodes that exceed `max_nodes` are dropped from the end. How many that are does not depend on the number of nodes
        of other rows.

        Args:
            stem (Tensor): `[B, M]` token ids.
            counts (Tensor): `[B]`, how many ids of the stem each row uses.
            max_nodes (int): nodes of the result, at least as many as the trees have.
        """
        index = cached_arange(max_nodes, stem.device).expand(len(stem), -1)
        node, in_stem = index - counts[:, None], index < counts[:, None]
        source = node.clamp(0, self.size - 1)
        stem_tokens = batch_gather(stem, index.clamp(max=stem.shape[1] - 1))
        tokens = batch_where(in_stem, stem_tokens, batch_gather(self.tokens, source))
        parents = torch.where(in_stem, index - 1, self.parents.gather(1, source) + counts[:, None])
        valid = in_stem | (self.valid.gather(1, source) & (node < self.size))
        max_depth = min(max_nodes, self.max_depth + stem.shape[1])
        return replace(self, tokens=tokens, parents=parents, valid=valid, max_depth=max_depth, template=None)

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
        """Return the tree attention mask `[B, N+1, N+1]` bool: tree index j is i itself or one of its ancestors."""
        rows, nodes = self.tokens.shape[:2]
        if self.template is not None:
            return self.template.ancestor_mask.expand(rows, -1, -1)
        if self.is_chain:
            causal = torch.ones(nodes + 1, nodes + 1, dtype=torch.bool, device=self.tokens.device).tril()
            return causal.expand(rows, -1, -1)
        reachable = torch.eye(nodes + 1, device=self.tokens.device).repeat(rows, 1, 1)
        reachable[:, 1:].scatter_(2, (self.parents + 1)[..., None], 1)
        for _ in range(max(1, self.max_depth).bit_length()):  # squaring doubles the distance: parents, grandparents, …
            reachable = torch.bmm(reachable, reachable).clamp_(max=1)
        return reachable > 0

    @cached_property
    def root_paths(self) -> Tensor:
        """Return the paths of tree indices from the root to every index, `[B, N+1, D+1]`; padding is undefined.

        The last entry of a path is the index itself. EAGLE calls these `retrieve_indices`.
        """
        rows, indices = len(self.tokens), cached_arange(self.size + 1, self.tokens.device)
        if self.template is not None:
            return self.template.root_paths.expand(rows, -1, -1)
        if self.is_chain:
            return indices.expand(rows, len(indices), -1)
        # an ancestor is written at its depth, any other index past the end, which is cut off
        depth = torch.where(self.ancestor_mask, self.num_ancestors[:, None], len(indices))
        paths = indices.new_zeros(rows, len(indices), len(indices) + 1)
        return paths.scatter_(2, depth, indices.expand_as(depth))[..., : min(self.size, self.max_depth) + 1]

    def path_tokens(self, roots: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens from the root to every tree index; padding is undefined.

        Args:
            roots (Tensor): `[B, 1, …]` root tokens.

        Returns:
            Tensor: `[B, N+1, D, …]` tokens of the paths, the root first.
            Tensor: `[B, N+1]`, how many tokens of each path follow the root.
        """
        tree_tokens = torch.cat([roots, self.tokens], 1)
        if self.is_chain:
            return tree_tokens[:, None].expand(-1, tree_tokens.shape[1], *tree_tokens.shape[1:]), self.num_ancestors
        tokens = batch_gather(tree_tokens, self.root_paths.flatten(1)).unflatten(1, self.root_paths.shape[1:])
        return tokens, self.num_ancestors

    @property
    def depth(self) -> Tensor:
        """Return the distance from the root in positions, `[B, N+1]` int64, the root itself included."""
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

    Shapes then stay the same from pass to pass there.
    """
    return int(counts.max()) if counts.device.type == "cpu" else upper_bound


def all_equal_without_sync(flags: Tensor) -> bool | None:
    """Return the value that all of `flags` have; None where they differ, and on accelerators (no device sync)."""
    if flags.device.type != "cpu":
        return None
    values = set(flags.flatten().tolist())
    return values.pop() if len(values) == 1 else None
