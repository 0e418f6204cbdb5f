"""A draft tree under way: the candidates of every level, and what is made of those that are kept."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.rows import places


@dataclass(frozen=True)
class Level:
    """Candidates of one level, `[B, K]` each: ids, log chances of being right under their parents, and of whole paths;
    where places are fixed, both are what orders siblings, and only whether it is finite counts.

    live: `[B, W]` places of the candidates that get children; above: `[B, W]` places of their parents among the live
    ones of the level before; reached: `[B, W]`, their scores, unless places are fixed. Of the last level all are empty.
    """

    ids: Tensor
    chances: Tensor
    scores: Tensor
    live: Tensor
    above: Tensor
    reached: Tensor


@dataclass
class Tree:
    """A tree under way, level by level; of its columns the root is 0 and candidates are 1 to M, in their order.

    going: `[B, 1]` bool, rows that still draft; None where all do. What joins levels is asked for when it has grown.
    """

    rows: int
    device: torch.device
    levels: list[Level] = field(default_factory=list)
    going: Tensor | None = None

    @property
    def width(self) -> int:
        """Nodes whose children come next."""
        return self.levels[-1].live.shape[1] if self.levels else 1

    @property
    def newest(self) -> Tensor:
        """`[B, W]`: their ids."""
        ids, live = self.levels[-1].ids, self.levels[-1].live
        return ids if ids.shape[1] == 1 else ids.gather(1, live)

    @property
    def above(self) -> Tensor:
        """`[B, W]`: places of their parents among the live nodes of the level before."""
        return self.levels[-1].above

    @cached_property
    def ids(self) -> Tensor:
        """`[B, M]`: all candidates."""
        return torch.cat([level.ids for level in self.levels], 1)

    @cached_property
    def scores(self) -> Tensor:
        return torch.cat([level.scores for level in self.levels], 1)

    @cached_property
    def valid(self) -> Tensor:
        """`[B, M]` bool: what can be drawn; NaN and infinity are of a drafter that cannot tell."""
        return torch.cat([level.chances for level in self.levels], 1).abs() < torch.inf

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(level.ids.shape[1] for level in self.levels)

    @property
    def depth(self) -> Tensor:
        """`[M]`: the level of every candidate, from 0."""
        return levels_of(self.sizes, self.device)

    @cached_property
    def ranked(self) -> Tensor:
        """`[B, 1 + …]`: columns of nodes whose children were ranked, level by level."""
        inner = [level.live for level in self.levels[:-1]]
        if not inner:
            return first_places(self.rows, self.device)
        begins = begins_of(self.sizes, tuple(live.shape[1] for live in inner), self.device)
        return F.pad(torch.cat(inner, 1) + begins, (1, 0))

    def best(self, nodes: int) -> Tensor:
        """`[B, N]`: the best candidates by path; with each of them its parent is."""
        # a child never outranks its parent; at equal scores the shallower one comes first
        scores = torch.sub(self.scores.double(), self.depth, alpha=1e-4)
        return scores.topk(min(nodes, scores.shape[1]), 1).indices

    def led(self, kept: Tensor, parents: Tensor) -> Tensor:
        """`kept` `[B, N]`, parents before children, and before all the path to the deepest of them, the best of those;
        a row that stopped has nothing further down. parents: `[B, M]`, columns."""
        scores = torch.add(self.scores, self.depth, alpha=1e3).masked_fill(~self.valid, -torch.inf)
        leaf = kept.gather(1, scores.gather(1, kept).argmax(1, keepdim=True))
        columns, above = [leaf + 1], F.pad(parents, (1, 0))
        for _ in self.levels[1:]:
            columns.append(above.gather(1, columns[-1]))
        path = torch.zeros_like(above, dtype=torch.bool).scatter_(1, torch.cat(columns, 1), True)[:, 1:]
        count = parents.shape[1]
        return torch.where(path.gather(1, kept), kept, kept + count).sort(1).values % count

    def draft(self, kept: Tensor, parents: Tensor) -> Draft:
        """The candidates `kept` `[B, N]`, parents before children; parents: `[B, M]`, columns."""
        above = self.columns_in(kept).gather(1, parents.gather(1, kept)) - 1
        chain = all(size == 1 for size in self.sizes)
        return Draft(self.ids.gather(1, kept), above, self.valid.gather(1, kept), len(self.levels), chain)

    def columns_in(self, kept: Tensor) -> Tensor:
        """`[B, 1 + M]`: the column of a draft of `kept` that root and candidates have; N + 1, one past the end, if
        none."""
        nodes, (rows, count) = places(kept.shape[1] + 2, kept.device), self.scores.shape
        found = nodes[-1].expand(rows, count).scatter(1, kept, nodes[1:-1].expand_as(kept))
        return F.pad(found, (1, 0))

    def columns(self, kept: Tensor) -> Tensor:
        """`[B, ·]`: the draft's columns of all ranked nodes; N + 1, one past the end, if they were not kept."""
        return self.columns_in(kept).gather(1, self.ranked)


@lru_cache(maxsize=256)
def first_places(rows: int, device: torch.device) -> Tensor:
    """`[B, 1]` of zeros: the only place of a chain."""
    with torch.inference_mode(False):
        return torch.zeros(rows, 1, dtype=torch.long, device=device)


@lru_cache(maxsize=256)
def levels_of(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """`[M]`: the level of every candidate, of levels of these sizes."""
    with torch.inference_mode(False):
        return torch.tensor([level for level, size in enumerate(sizes) for _ in range(size)], device=device)


@lru_cache(maxsize=256)
def begins_of(sizes: tuple[int, ...], live: tuple[int, ...], device: torch.device) -> Tensor:
    """The column that its level begins at, for so many live nodes of every level of these sizes."""
    firsts = zip(itertools.accumulate(sizes, initial=1), live, strict=False)
    with torch.inference_mode(False):
        return torch.tensor([first for first, nodes in firsts for _ in range(nodes)], device=device)
