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
    def of_chains(chains: list[Tensor]) -> Draft:
        """Several chains `[B, N_i]` under one root, one after another."""
        tokens = torch.cat(chains, 1)
        ends = [0]
        for chain in chains:
            ends.append(ends[-1] + chain.shape[1])
        parents = torch.arange(-1, tokens.shape[1] - 1, device=tokens.device)
        parents[ends[:-1]] = -1
        return Draft(tokens, parents.expand_as(tokens), torch.ones_like(tokens, dtype=torch.bool))

    @staticmethod
    def empty(rows: int, device: torch.device | str = "cpu") -> Draft:
        """Nothing drafted: plain decoding."""
        return Draft.of_chain(torch.empty(rows, 0, dtype=torch.long, device=device))

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
