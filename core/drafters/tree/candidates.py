"""A draft tree under way: the candidates of every level, and what is made of those that are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.rows import places


@dataclass(frozen=True)
class Level:
    """Candidates of one level, `[B, K]` each: ids, log chances of being right under their parents, and of whole paths;
    where places are fixed, both are what orders siblings, and only whether it is finite counts.

    live: `[B, W]` places of the candidates that get children; above: `[B, W]` places of their parents among the live
    ones of the level before. Of the last level both are empty.
    """

    ids: Tensor
    chances: Tensor
    scores: Tensor
    live: Tensor
    above: Tensor


@dataclass
class Tree:
    """A tree under way, level by level. going: `[B, 1]` bool, rows that still draft, asked for where some stop."""

    rows: int
    device: torch.device
    levels: list[Level] = field(default_factory=list)
    going: Tensor | None = None
    stopped: list[Tensor] = field(default_factory=list)

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

    @property
    def ids(self) -> Tensor:
        """`[B, M]`: all candidates, which indices below are of."""
        return torch.cat([level.ids for level in self.levels], 1)

    @property
    def scores(self) -> Tensor:
        return torch.cat([level.scores for level in self.levels], 1)

    @property
    def valid(self) -> Tensor:
        """`[B, M]` bool: what can be drawn, in rows that had not stopped."""
        possible = torch.cat([level.chances for level in self.levels], 1) > -torch.inf
        if not self.stopped:
            return possible
        going = (row.expand(-1, level.ids.shape[1]) for row, level in zip(self.stopped, self.levels, strict=True))
        return possible & torch.cat(list(going), 1)

    @property
    def depth(self) -> Tensor:
        """`[M]`: the level of every candidate, from 0."""
        return levels_of(tuple(level.ids.shape[1] for level in self.levels), self.device)

    def ranked(self) -> Tensor:
        """`[B, 1 + …]`: nodes whose children were ranked, level by level; -1 is the root."""
        first, found = 0, [torch.full((self.rows, 1), -1, device=self.device)]
        for level in self.levels[:-1]:
            found.append(first + level.live)
            first += level.ids.shape[1]
        return torch.cat(found, 1)

    def best(self, nodes: int) -> Tensor:
        """`[B, N]`: the best candidates by path, parents before children."""
        # a child never outranks its parent; at equal scores the shallower one comes first
        scores = self.scores.double() - 1e-4 * self.depth
        return scores.topk(min(nodes, scores.shape[1]), 1).indices.sort(1).values

    def likeliest(self, kept: Tensor) -> Tensor:
        """`[B]`: which of `kept` is the deepest, the best of those; a row that stopped has nothing further down."""
        scores = (1e3 * self.depth + self.scores).masked_fill(~self.valid, -torch.inf)
        return scores.gather(1, kept).argmax(1)

    def draft(self, kept: Tensor, parents: Tensor) -> Draft:
        """The candidates `kept` `[B, N]`, parents before children; parents: `[B, M]` of all candidates."""
        above = parents.gather(1, kept)
        above = torch.where(above < 0, -1, self.places_in(kept).gather(1, above.clamp(min=0)))
        chain = all(level.ids.shape[1] == 1 for level in self.levels)
        tokens, valid = self.ids.gather(1, kept), self.valid.gather(1, kept)
        return Draft(tokens, above, valid, len(self.levels), chain)

    def places_in(self, kept: Tensor) -> Tensor:
        """`[B, M]`: where a candidate stands among `kept`; N, one past the end, if nowhere."""
        nodes = kept.shape[1]
        place = torch.full((self.rows, len(self.depth)), nodes, device=kept.device)
        return place.scatter_(1, kept, places(nodes, kept.device).expand_as(kept))

    def columns(self, kept: Tensor) -> Tensor:
        """`[B, ·]`: the draft's columns of all ranked nodes; N + 1, one past the end, if they were not kept."""
        ranked = self.ranked()
        return torch.where(ranked < 0, 0, self.places_in(kept).gather(1, ranked.clamp(min=0)) + 1)


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
