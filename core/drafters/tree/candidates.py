"""Draft tree while it is grown: candidates of every level, and the `Draft` that is made of those that are kept."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.batched_state import cached_arange
from polydraft.core.draft import Draft


@dataclass(frozen=True)
class TreeLevel:
    """Candidate nodes of one level of a draft tree.

    The frontier nodes are those of the candidates that get children. In static trees `log_probs` and `path_scores` are
    draft logits, which are only used to tell whether they are finite. The last three fields are empty for the last
    level.
    """

    ids: Tensor  # [B, K] token ids
    log_probs: Tensor  # [B, K] log of the estimated acceptance under the parent
    path_scores: Tensor  # [B, K] sum of log_probs from the root
    frontier_nodes: Tensor  # [B, W] indices of the frontier nodes among the K candidates
    parent_index: Tensor  # [B, W] index of each frontier node's parent among the frontier nodes of the level before
    frontier_scores: Tensor  # [B, W] path scores of the frontier nodes; empty in static trees


@dataclass
class DraftTree:
    """Draft tree under construction, level by level.

    Tree index 0 is the root, tree indices 1 to M are the candidates in the order of their levels. Cached properties
    join all levels, so they are only used once the tree has grown.
    """

    rows: int  # number of batch rows B
    device: torch.device
    levels: list[TreeLevel] = field(default_factory=list)
    active_rows: Tensor | None = None  # [B, 1] bool, batch rows whose trees still grow; None if all do
    # [B, 1] or [1, 1] log of the probability that a stop rule multiplies up from level to level; None before the first
    rule_state: Tensor | None = None

    @property
    def width(self) -> int:
        """Number W of frontier nodes, whose children are added next; 1, the root, before the first level."""
        return self.levels[-1].frontier_nodes.shape[1] if self.levels else 1

    @property
    def frontier_ids(self) -> Tensor:
        """Token ids of the frontier nodes (the nodes whose children are added next), `[B, W]`."""
        ids, frontier_nodes = self.levels[-1].ids, self.levels[-1].frontier_nodes
        return ids if ids.shape[1] == 1 else ids.gather(1, frontier_nodes)  # the level of a chain has only that node

    @property
    def parent_index(self) -> Tensor:
        """Index of each frontier node's parent among the frontier nodes of the level before, `[B, W]`."""
        return self.levels[-1].parent_index

    @cached_property
    def ids(self) -> Tensor:
        """Token ids of all candidates, `[B, M]`."""
        return torch.cat([level.ids for level in self.levels], 1)

    @cached_property
    def path_scores(self) -> Tensor:
        """Sum of log acceptances from the root to every candidate, `[B, M]`."""
        return torch.cat([level.path_scores for level in self.levels], 1)

    @cached_property
    def valid(self) -> Tensor:
        """Mask `[B, M]`, False for candidates that are banned or whose draft logits are not finite."""
        return torch.cat([level.log_probs for level in self.levels], 1).abs() < torch.inf

    @property
    def level_sizes(self) -> tuple[int, ...]:
        """Number of candidates of every level."""
        return tuple(level.ids.shape[1] for level in self.levels)

    @property
    def depth(self) -> Tensor:
        """Level of every candidate, counted from 0, `[M]`."""
        return candidate_levels(self.level_sizes, self.device)

    @cached_property
    def expanded_tree_indices(self) -> Tensor:
        """Tree indices of the root (0) and of all E nodes that got children, level by level, `[B, 1 + E]`."""
        expanded_nodes = [level.frontier_nodes for level in self.levels[:-1]]  # indices within each level
        if not expanded_nodes:  # a tree of one level: only the root has children
            return zero_index(self.rows, self.device)
        num_expanded = tuple(nodes.shape[1] for nodes in expanded_nodes)
        # [E] tree index of the first candidate of each node's level: index within the level -> tree index
        first_index = level_offsets(self.level_sizes, num_expanded, self.device)
        return F.pad(torch.cat(expanded_nodes, 1) + first_index, (1, 0))

    def top_candidates(self, num_nodes: int) -> Tensor:
        """Return the `num_nodes` candidates with the highest path scores, `[B, N]`; their parents are among them."""
        # a child's score (sum of log probabilities from the root) is at most its parent's; a small penalty per level
        # puts the parent first where they are equal
        scores = torch.sub(self.path_scores.double(), self.depth, alpha=1e-4)
        return scores.topk(min(num_nodes, scores.shape[1]), 1).indices

    def deepest_path_first(self, draft_candidates: Tensor, parents: Tensor) -> Tensor:
        """Reorder `draft_candidates` so that the path from the root to a deepest valid one comes first.

        Among several deepest candidates it is the one with the highest path score.

        Args:
            draft_candidates (Tensor): [B, N] candidates (indices 0 … M - 1 of the tree's nodes) that are drafted.
            parents (Tensor): [B, M] tree index of every candidate's parent; 0 is the root, i + 1 candidate i.

        Returns:
            Tensor: [B, N], parents before children.
        """
        # the depth has so large a weight that scores only decide between candidates of one depth
        scores = torch.add(self.path_scores, self.depth, alpha=1e3).masked_fill(~self.valid, -torch.inf)
        leaf = draft_candidates.gather(1, scores.gather(1, draft_candidates).argmax(1, keepdim=True))  # [B, 1]
        path, parent_of = [leaf + 1], F.pad(parents, (1, 0))  # tree indices, from the leaf up; the root's parent is 0
        for _ in self.levels[1:]:  # enough steps for the deepest leaf; shorter paths stay at the root
            path.append(parent_of.gather(1, path[-1]))
        on_path = torch.zeros_like(parent_of, dtype=torch.bool)
        on_path = on_path.scatter_(1, torch.cat(path, 1), True)[:, 1:]  # [B, M], without the root
        num_candidates = parents.shape[1]
        # Candidates off the path get keys from M on, so they come behind all others, both parts in the order of their
        # levels; the remainder modulo M is the candidate again.
        sort_keys = torch.where(
            on_path.gather(1, draft_candidates), draft_candidates, draft_candidates + num_candidates
        )
        return sort_keys.sort(1).values % num_candidates

    def to_draft(self, draft_candidates: Tensor, parents: Tensor) -> Draft:
        """Return the draft that consists of `draft_candidates`, in this order.

        Args:
            draft_candidates (Tensor): [B, N] candidates (indices 0 … M - 1 of this tree's nodes), parents before
                children.
            parents (Tensor): [B, M] index in this tree of every candidate's parent; 0 is the root, i + 1 candidate i.
        """
        # [B, N] parent in this tree -> its tree index in the draft -> node of the draft, -1 for the root
        draft_parents = self.draft_tree_indices(draft_candidates).gather(1, parents.gather(1, draft_candidates)) - 1
        is_chain = all(size == 1 for size in self.level_sizes)
        ids, valid = self.ids.gather(1, draft_candidates), self.valid.gather(1, draft_candidates)
        return Draft(ids, draft_parents, valid, len(self.levels), is_chain)

    def draft_tree_indices(self, draft_candidates: Tensor) -> Tensor:
        """Return the tree index in the draft for the root and all M candidates of this tree, `[B, 1 + M]`.

        The root has tree index 0, and `draft_candidates` `[B, N]`, the candidates that are drafted, have 1 to N. All
        others get N + 1, one past the end.
        """
        draft_index = cached_arange(draft_candidates.shape[1] + 2, draft_candidates.device)  # 0 … N + 1
        not_kept = draft_index[-1].expand(self.path_scores.shape)
        indices = not_kept.scatter(1, draft_candidates, draft_index[1:-1].expand_as(draft_candidates))
        return F.pad(indices, (1, 0))

    def expanded_draft_tree_indices(self, draft_candidates: Tensor) -> Tensor:
        """Return `draft_tree_indices` of the root and all E nodes that got children, `[B, 1 + E]`."""
        return self.draft_tree_indices(draft_candidates).gather(1, self.expanded_tree_indices)


@lru_cache(maxsize=256)
def zero_index(rows: int, device: torch.device) -> Tensor:
    """Return zeros `[rows, 1]`: the index of the only node of a chain's level, in every batch row."""
    with torch.inference_mode(False):  # a cached tensor made in inference mode could not be used in training later
        return torch.zeros(rows, 1, dtype=torch.long, device=device)


@lru_cache(maxsize=256)
def candidate_levels(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the level of every candidate, `[M]`, for levels of `sizes` candidates."""
    with torch.inference_mode(False):
        return torch.tensor([level for level, size in enumerate(sizes) for _ in range(size)], device=device)


@lru_cache(maxsize=256)
def level_offsets(sizes: tuple[int, ...], num_frontier: tuple[int, ...], device: torch.device) -> Tensor:
    """Return for every frontier node the tree index of the first candidate of its level, level by level.

    Args:
        sizes (tuple[int, ...]): Number of candidates of every level; their tree indices start at 1.
        num_frontier (tuple[int, ...]): Number of frontier nodes (nodes with children) of every level but the last.
        device (torch.device): Device of the result.

    Returns:
        Tensor: [E] for E frontier nodes in all.
    """
    # first tree index and number of frontier nodes of each level; the last level has no frontier nodes
    first_indices = zip(itertools.accumulate(sizes, initial=1), num_frontier, strict=False)
    with torch.inference_mode(False):
        return torch.tensor([first for first, num_nodes in first_indices for _ in range(num_nodes)], device=device)
