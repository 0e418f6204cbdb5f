"""A draft: tokens guessed under the last committed one (the root), as a tree. A chain is a tree with one branch.

Column 0 of everything scored is the root; node i of a draft is column i + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

KNOWN = ("lineage", "depth", "deepest")  # what follows from the parents


@dataclass(frozen=True)
class Draft:
    """One tree a row.

    tokens: `[B, N]` int64, ids of the nodes, the root excluded.
    parents: `[B, N]` int64, index of the parent node (smaller than the node's own), -1 for the root.
    valid: `[B, N]` bool, False where a row has fewer nodes.
    chain: every row is a chain in order, so nothing needs to move when it is committed.
    passes: network passes the drafter spent on it.
    q: `[B, N+1, V]` log q, the law that the children of every column were drawn from (in the order of their indices);
    None where they were picked deterministically, which is a one-hot law.
    """

    tokens: Tensor
    parents: Tensor
    valid: Tensor
    chain: bool = False
    passes: int = 0
    q: Tensor | None = None

    @staticmethod
    def of_chain(tokens: Tensor, valid: Tensor | None = None, passes: int = 0, q: Tensor | None = None) -> Draft:
        """A chain from `[B, N]` ids; an invalid node invalidates all that follow it."""
        rows, nodes = tokens.shape
        parents = torch.arange(-1, nodes - 1, device=tokens.device).expand(rows, nodes)
        valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid.cumprod(1).bool()
        return Draft(tokens, parents, valid, chain=True, passes=passes, q=q)

    @staticmethod
    def empty(rows: int, device: torch.device | str = "cpu") -> Draft:
        """Nothing drafted: plain decoding."""
        return Draft.of_chain(torch.empty(rows, 0, dtype=torch.long, device=device))

    def with_tokens(self, tokens: Tensor, valid: Tensor) -> Draft:
        """The same tree, this one's only row, for every row of `[B, N]` tokens; what is known of it stays known."""
        rows = len(tokens)
        made = Draft(tokens, self.parents.expand(rows, -1), valid, self.chain)
        made.__dict__.update(
            lineage=self.lineage.expand(rows, -1, -1), depth=self.depth.expand(rows, -1), deepest=self.deepest
        )
        return made

    def after(self, passes: int, q: Tensor | None = None) -> Draft:
        """The same, drafted in `passes` passes, with the law its tokens were drawn from."""
        made = replace(self, passes=passes, q=q)
        made.__dict__.update({name: self.__dict__[name] for name in KNOWN if name in self.__dict__})
        return made

    def led_by(self, leaf: Tensor) -> Draft:
        """The same trees with the path to node `leaf` `[B]` in front."""
        rows, nodes = self.tokens.shape
        path = self.lineage[torch.arange(rows, device=leaf.device), leaf + 1, 1:]
        places = torch.arange(nodes, device=leaf.device)
        order = torch.where(path, places, places + nodes).argsort(1)  # ancestors come first, in their order
        parents = self.parents.gather(1, order)
        parents = torch.where(parents < 0, -1, order.argsort(1).gather(1, parents.clamp(min=0)))
        return Draft(self.tokens.gather(1, order), parents, self.valid.gather(1, order), passes=self.passes)

    def under(self, stem: Tensor, counts: Tensor) -> Draft:
        """The same trees under chains: the first `counts[b]` ids of `stem` `[B, M]` come before everything else."""
        rows, nodes = self.tokens.shape
        place = torch.arange(stem.shape[1] + nodes, device=stem.device).expand(rows, -1)
        node, before = place - counts[:, None], place < counts[:, None]
        inside = node.clamp(0, nodes - 1)
        tokens = torch.where(before, stem.gather(1, place.clamp(max=stem.shape[1] - 1)), self.tokens.gather(1, inside))
        parents = torch.where(before, place - 1, self.parents.gather(1, inside) + counts[:, None])
        valid = before | (self.valid.gather(1, inside) & (node >= 0) & (node < nodes))
        return Draft(tokens, parents, valid, self.chain, self.passes)

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
        ways = torch.eye(nodes + 1, dtype=torch.float64, device=self.tokens.device).repeat(rows, 1, 1)
        ways[:, 1:].scatter_(2, (self.parents + 1)[..., None], 1)
        for _ in range(nodes.bit_length()):  # doubling: parents, grandparents, …; counts of ways up, never negative
            ways = torch.bmm(ways, ways)
        return ways > 0

    @cached_property
    def deepest(self) -> int:
        """Depth of the deepest node of any row."""
        return self.size if self.chain else int(self.depth.max())

    @cached_property
    def depth(self) -> Tensor:
        """`[B, N+1]` int64: distance from the root, column 0 included."""
        return self.lineage.sum(-1) - 1
