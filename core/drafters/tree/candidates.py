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

    In trees of fixed shape `log_probs` and `path_scores` only order siblings; what counts is whether they are finite.
    The last three fields are empty for the last level.
    """

    ids: Tensor  # [B, K] token ids
    log_probs: Tensor  # [B, K] log of the estimated acceptance under the parent
    path_scores: Tensor  # [B, K] sum of log_probs from the root
    frontier_nodes: Tensor  # [B, W] indices of the candidates that get children
    parent_index: Tensor  # [B, W] index of their parents among the frontier nodes of the level before
    frontier_scores: Tensor  # [B, W] their path scores; empty in trees of fixed shape


@dataclass
class DraftTree:
    """Draft tree under construction, level by level.

    Column 0 is the root, columns 1 to M are the candidates in the order of their levels. Cached properties join all
    levels, so they are read only once the tree has grown.
    """

    rows: int
    device: torch.device
    levels: list[TreeLevel] = field(default_factory=list)
    active_rows: Tensor | None = None  # [B, 1] bool, rows that still draft; None if all do

    @property
    def width(self) -> int:
        """Number of frontier nodes, those that get children next."""
        return self.levels[-1].frontier_nodes.shape[1] if self.levels else 1

    @property
    def frontier_ids(self) -> Tensor:
        """Token ids of the frontier nodes, `[B, W]`."""
        ids, frontier = self.levels[-1].ids, self.levels[-1].frontier_nodes
        return ids if ids.shape[1] == 1 else ids.gather(1, frontier)

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
        return torch.cat([level.path_scores for level in self.levels], 1)

    @cached_property
    def valid(self) -> Tensor:
        """Mask `[B, M]` of candidates that can be drawn, unlike those of drafter logits that are not finite."""
        return torch.cat([level.log_probs for level in self.levels], 1).abs() < torch.inf

    @property
    def level_sizes(self) -> tuple[int, ...]:
        return tuple(level.ids.shape[1] for level in self.levels)

    @property
    def depth(self) -> Tensor:
        """Level of every candidate, counted from 0, `[M]`."""
        return candidate_levels(self.level_sizes, self.device)

    @cached_property
    def expanded_columns(self) -> Tensor:
        """Return the columns of the root and of all nodes that got children, level by level, `[B, 1 + …]`."""
        inner = [level.frontier_nodes for level in self.levels[:-1]]
        if not inner:
            return zero_index(self.rows, self.device)
        offsets = level_offsets(self.level_sizes, tuple(nodes.shape[1] for nodes in inner), self.device)
        return F.pad(torch.cat(inner, 1) + offsets, (1, 0))

    def best_candidates(self, nodes: int) -> Tensor:
        """Return the `nodes` candidates with the best path scores, `[B, N]`; the parent of each is among them."""
        # a child never outranks its parent; at equal scores the shallower one comes first
        scores = torch.sub(self.path_scores.double(), self.depth, alpha=1e-4)
        return scores.topk(min(nodes, scores.shape[1]), 1).indices

    def best_path_first(self, kept: Tensor, parents: Tensor) -> Tensor:
        """Reorder `kept` so that the path to its deepest node comes first.

        Among several deepest nodes the one with the best score leads. Rows that stopped drafting have no valid nodes
        further down.

        Args:
            kept (Tensor): [B, N] candidates that are drafted.
            parents (Tensor): [B, M] column of every candidate's parent.

        Returns:
            Tensor: [B, N], parents before children.
        """
        scores = torch.add(self.path_scores, self.depth, alpha=1e3).masked_fill(~self.valid, -torch.inf)
        leaf = kept.gather(1, scores.gather(1, kept).argmax(1, keepdim=True))
        columns, parent_of_column = [leaf + 1], F.pad(parents, (1, 0))
        for _ in self.levels[1:]:
            columns.append(parent_of_column.gather(1, columns[-1]))
        on_path = torch.zeros_like(parent_of_column, dtype=torch.bool)
        on_path = on_path.scatter_(1, torch.cat(columns, 1), True)[:, 1:]
        count = parents.shape[1]
        return torch.where(on_path.gather(1, kept), kept, kept + count).sort(1).values % count

    def to_draft(self, kept: Tensor, parents: Tensor) -> Draft:
        """Return the draft that holds the candidates `kept`.

        Args:
            kept (Tensor): [B, N] candidates, parents before children.
            parents (Tensor): [B, M] column of every candidate's parent.
        """
        draft_parents = self.draft_columns(kept).gather(1, parents.gather(1, kept)) - 1
        is_chain = all(size == 1 for size in self.level_sizes)
        ids, valid = self.ids.gather(1, kept), self.valid.gather(1, kept)
        return Draft(ids, draft_parents, valid, len(self.levels), is_chain)

    def draft_columns(self, kept: Tensor) -> Tensor:
        """Return which column of a draft of `kept` the root and every candidate have, `[B, 1 + M]`.

        Candidates that are not kept get N + 1, one past the end.
        """
        nodes, (rows, count) = cached_arange(kept.shape[1] + 2, kept.device), self.path_scores.shape
        columns = nodes[-1].expand(rows, count).scatter(1, kept, nodes[1:-1].expand_as(kept))
        return F.pad(columns, (1, 0))

    def expanded_draft_columns(self, kept: Tensor) -> Tensor:
        """Return `draft_columns` of the nodes that got children, `[B, ·]`."""
        return self.draft_columns(kept).gather(1, self.expanded_columns)


@lru_cache(maxsize=256)
def zero_index(rows: int, device: torch.device) -> Tensor:
    """Return zeros `[B, 1]`, the only index into a level of a chain."""
    with torch.inference_mode(False):
        return torch.zeros(rows, 1, dtype=torch.long, device=device)


@lru_cache(maxsize=256)
def candidate_levels(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the level of every candidate, `[M]`, for levels of these sizes."""
    with torch.inference_mode(False):
        return torch.tensor([level for level, size in enumerate(sizes) for _ in range(size)], device=device)


@lru_cache(maxsize=256)
def level_offsets(sizes: tuple[int, ...], num_frontier: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the first column of its level for every frontier node, given level sizes and frontier sizes."""
    firsts = zip(itertools.accumulate(sizes, initial=1), num_frontier, strict=False)
    with torch.inference_mode(False):
        return torch.tensor([first for first, nodes in firsts for _ in range(nodes)], device=device)
