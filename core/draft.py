"""A draft: tokens guessed under the last committed one (the root), as a tree. A chain is a tree with one branch.

Column 0 of everything scored is the root; node i of a draft is column i + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polydraft.core.rows import places
from polydraft.core.tokens import either, take


@dataclass(frozen=True)
class Ahead:
    """K open rows of a picture, W tokens each, of which a draft guesses on (`core.drafters.rows`).

    ids, kept: `[B, K, W]`, of which the first `settled` `[B, K]` are taken, and those that had been drafted; so many
    `guesses` `[B, K]` follow. begun: `[B]`, how many of the first row are committed. judged: `[B, K, w + 1]` bool,
    columns whose choice counts; rooted: `[B]` bool, the first of them is the root. slots, depth: `[B, C]`, where behind
    the committed keys and values every column's go, and its distance from the root. sees: `[B, C, M]` bool, which slots
    behind them it attends to.
    """

    ids: Tensor
    settled: Tensor
    guesses: Tensor
    kept: Tensor
    begun: Tensor
    judged: Tensor
    rooted: Tensor
    slots: Tensor
    depth: Tensor
    sees: Tensor


@dataclass(frozen=True)
class Draft:
    """One tree a row.

    tokens: `[B, N]` int64, ids of the nodes, the root excluded; or `[B, N, C]` latents.
    parents: `[B, N]` int64, index of the parent node (smaller than the node's own), -1 for the root.
    valid: `[B, N]` bool, False where a row has fewer nodes.
    deepest: no node is deeper; known without looking at the device.
    chain: every row is a chain in order, so nothing needs to move when it is committed.
    passes: network passes the drafter spent on it.
    q: what judges must know of how tokens were drawn. Of ids `[B, N+1, V]` log q, the law that the children of every
    column were drawn from (in the order of their indices), None where they were picked deterministically, which is a
    one-hot law; of latents the walk that led to each (`core.latent.law`).
    shape: another draft of the same parents, whose lineage and depth this one shares.
    ahead: where its nodes stand and what they see, if that does not follow from their parents.
    """

    tokens: Tensor
    parents: Tensor
    valid: Tensor
    deepest: int
    chain: bool = False
    passes: int = 0
    q: Any = None
    shape: Draft | None = None
    ahead: Ahead | None = None

    @staticmethod
    def of_chain(tokens: Tensor, valid: Tensor | None = None, passes: int = 0, q: Any = None) -> Draft:
        """A chain from `[B, N]` ids or `[B, N, C]` latents; an invalid node invalidates all that follow it."""
        rows, nodes = tokens.shape[:2]
        parents = torch.arange(-1, nodes - 1, device=tokens.device).expand(rows, nodes)
        valid = torch.ones_like(parents, dtype=torch.bool) if valid is None else valid.cumprod(1).bool()
        return Draft(tokens, parents, valid, nodes, chain=True, passes=passes, q=q)

    @staticmethod
    def empty(like: Tensor) -> Draft:
        """Nothing drafted, under tokens `[B, …]`: plain decoding."""
        return Draft.of_chain(like[:, :0])

    def after(self, passes: int, q: Any = None) -> Draft:
        """The same, drafted in `passes` passes, with the law its tokens were drawn from."""
        return replace(self, passes=passes, q=q)

    def without_unknown(self) -> Draft:
        """Return the draft of ids without nodes whose `q` is no law: of NaN or infinite logits.

        A test against such a law would mean nothing. Whether it is one depends on what stands above a node alone, and
        not on which id was drawn, so that exact methods stay exact.
        """
        rows = places(len(self.tokens), self.tokens.device)[:, None]
        return replace(self, valid=self.valid & (self.q[rows, self.parents + 1, self.tokens] > -torch.inf))

    def under(self, stem: Tensor, counts: Tensor, room: int) -> Draft:
        """The same trees under chains: the first `counts[b]` ids of `stem` `[B, M]` come first.

        What no longer fits into `room` nodes, of which the trees have no more, is dropped from the end: how much that
        is does not depend on how many nodes other rows have.
        """
        place = places(room, stem.device).expand(len(stem), -1)
        node, before = place - counts[:, None], place < counts[:, None]
        inside = node.clamp(0, self.size - 1)
        tokens = either(before, take(stem, place.clamp(max=stem.shape[1] - 1)), take(self.tokens, inside))
        parents = torch.where(before, place - 1, self.parents.gather(1, inside) + counts[:, None])
        valid = before | (self.valid.gather(1, inside) & (node < self.size))
        deepest = min(room, self.deepest + stem.shape[1])
        return replace(self, tokens=tokens, parents=parents, valid=valid, deepest=deepest, shape=None)

    @property
    def size(self) -> int:
        return self.tokens.shape[1]

    @property
    def room(self) -> int:
        """Slots that root and nodes take."""
        return self.size + 1 if self.ahead is None else self.ahead.sees.shape[2]

    @cached_property
    def lineage(self) -> Tensor:
        """`[B, N+1, N+1]` bool: column j is column i itself or one of its ancestors (the root is everyone's)."""
        rows, nodes = self.tokens.shape[:2]
        if self.shape is not None:
            return self.shape.lineage.expand(rows, -1, -1)
        if self.chain:
            square = torch.ones(nodes + 1, nodes + 1, dtype=torch.bool, device=self.tokens.device).tril()
            return square.expand(rows, -1, -1)
        ways = torch.eye(nodes + 1, device=self.tokens.device).repeat(rows, 1, 1)
        ways[:, 1:].scatter_(2, (self.parents + 1)[..., None], 1)
        for _ in range(max(1, self.deepest).bit_length()):  # doubling: parents, grandparents, …
            ways = torch.bmm(ways, ways).clamp_(max=1)
        return ways > 0

    @cached_property
    def lines(self) -> Tensor:
        """`[B, N+1, D+1]`: from the root on the columns that lead to every column, itself the last; what is further
        behind means nothing."""
        rows, columns = len(self.tokens), places(self.size + 1, self.tokens.device)
        if self.shape is not None:
            return self.shape.lines.expand(rows, -1, -1)
        if self.chain:
            return columns.expand(rows, len(columns), -1)
        place = torch.where(self.lineage, self.ancestors[:, None], len(columns))
        found = columns.new_zeros(rows, len(columns), len(columns) + 1)
        return found.scatter_(2, place, columns.expand_as(place))[..., : min(self.size, self.deepest) + 1]

    def paths(self, roots: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens from the root to every column, `[B, N+1, D, …]`, and how many of them come behind it, `[B, N+1]`; what
        is further behind means nothing. roots: `[B, 1, …]`."""
        nodes = torch.cat([roots, self.tokens], 1)
        if self.chain:
            return nodes[:, None].expand(-1, nodes.shape[1], *nodes.shape[1:]), self.ancestors
        return take(nodes, self.lines.flatten(1)).unflatten(1, self.lines.shape[1:]), self.ancestors

    @property
    def depth(self) -> Tensor:
        """`[B, N+1]` int64: distance from the root in positions, column 0 included."""
        return self.ancestors if self.ahead is None else self.ahead.depth

    @cached_property
    def ancestors(self) -> Tensor:
        """`[B, N+1]` int64: how many columns lead to every column."""
        if self.shape is not None:
            return self.shape.ancestors.expand(len(self.tokens), -1)
        if self.chain:
            return places(self.size + 1, self.tokens.device).expand(len(self.tokens), -1)
        return self.lineage.sum(-1) - 1


def most(counts: Tensor, ceiling: int) -> int:
    """The greatest of `counts`, where asking costs nothing; on accelerators, where shapes stay the same, `ceiling`."""
    return int(counts.max()) if counts.device.type == "cpu" else ceiling


def agreed(flags: Tensor) -> bool | None:
    """What all of `flags` say, where asking costs nothing; None where they differ, and on accelerators."""
    if flags.device.type != "cpu":
        return None
    said = set(flags.flatten().tolist())
    return said.pop() if len(said) == 1 else None
