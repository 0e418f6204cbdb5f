"""A draft: tokens guessed under the last committed one (the root), as a tree. A chain is a tree with one branch.

Column 0 of everything scored is the root; node i of a draft is column i + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Draft:
    """One tree a row.

    tokens: `[B, N]` int64, ids of the nodes, the root excluded.
    parents: `[B, N]` int64, index of the parent node (smaller than the node's own), -1 for the root.
    valid: `[B, N]` bool, False where a row has fewer nodes.
    chain: every row is a chain in order, so nothing needs to move when it is committed.
    passes: network passes the drafter spent on it.
    """

    tokens: Tensor
    parents: Tensor
    valid: Tensor
    chain: bool = False
    passes: int = 0

    @staticmethod
    def of_chain(tokens: Tensor, valid: Tensor | None = None, passes: int = 0) -> Draft:
        """A chain from `[B, N]` ids; an invalid node invalidates all that follow it."""
        rows, nodes = tokens.shape
        parents = torch.arange(-1, nodes - 1, device=tokens.device).expand(rows, nodes)
        valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid.cumprod(1).bool()
        return Draft(tokens, parents, valid, chain=True, passes=passes)

    @staticmethod
    def empty(rows: int, device: torch.device | str = "cpu") -> Draft:
        """Nothing drafted: plain decoding."""
        return Draft.of_chain(torch.empty(rows, 0, dtype=torch.long, device=device))

    def led_by(self, leaf: Tensor) -> tuple[Draft, Tensor]:
        """The same trees with the path to node `leaf` `[B]` in front, and `[B, N]` where each node was before."""
        rows, nodes = self.tokens.shape
        path = self.lineage[torch.arange(rows, device=leaf.device), leaf + 1, 1:]
        places = torch.arange(nodes, device=leaf.device)
        order = torch.where(path, places, places + nodes).argsort(1)  # ancestors come first, in their order
        parents = self.parents.gather(1, order)
        parents = torch.where(parents < 0, -1, order.argsort(1).gather(1, parents.clamp(min=0)))
        return Draft(self.tokens.gather(1, order), parents, self.valid.gather(1, order), passes=self.passes), order

    @property
    def size(self) -> int:
        return self.tokens.shape[1]

    @cached_property
    def lineage(self) -> Tensor:
        """`[B, N+1, N+1]` bool: column j is column i itself or one of its ancestors (the root is everyone's)."""
        rows, nodes = self.tokens.shape
        if self.chain:
            square = torch.ones(nodes + 1, nodes + 1, dtype=torch.bool, device=self.tokens.device).tril()
            return square.expand(rows, -1, -1)
        lineage = torch.eye(nodes + 1, dtype=torch.bool, device=self.tokens.device).repeat(rows, 1, 1)
        lineage[:, 1:].scatter_(2, (self.parents + 1)[..., None], True)
        for _ in range(nodes.bit_length()):  # doubling: parents, grandparents, …
            lineage = torch.bmm(lineage.float(), lineage.float()) > 0
        return lineage

    @cached_property
    def depth(self) -> Tensor:
        """`[B, N+1]` int64: distance from the root, column 0 included."""
        return self.lineage.sum(-1) - 1
