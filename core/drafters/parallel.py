"""Drafters that say all levels of a tree at once: the laws of the next K tokens from the target's features so far.

What is guessed for a place does not depend on what is guessed before it, so a node's law is that of its depth (seen
through the sampler with the node's own path), and a tree of any shape costs one pass of a small network.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from polydraft.core.cache import SlotCache
from polydraft.core.drafters.attached import Attached
from polydraft.core.drafters.plans import Plan, Rank
from polydraft.core.drafters.tree import Growth, Nodes, Stem, TreeDrafter
from polydraft.core.target import CausalTarget, Prefill


class Foreseer(Attached):
    """A network that guesses the target's features of the next `places` columns, for the target's own frozen head.

    Entry i is the target's feature of token i (what chose token i + 1) and the embedding of token i + 1; place k behind
    it is the column of token i + 1 + k, whose law is that of token i + 2 + k. The root, which the target itself
    supplied, is the token of the last entry: its feature is not known yet, and is the first that is guessed.
    """

    places: int

    @abstractmethod
    def everywhere(self, features: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        """`[B, S, K, D]` behind the entries `starts` `[S]` of whole sequences, `[B, I, D]` each; for training."""

    def cache(self, rows: int, capacity: int) -> SlotCache:
        """What it remembers of earlier entries; nothing unless it says otherwise."""
        return SlotCache(0, rows, capacity)

    def remember(self, cache: SlotCache, features: Tensor, embeddings: Tensor) -> None:
        """Read prompts, `[rows, I, D]` each."""

    @abstractmethod
    def ahead(
        self, cache: SlotCache, cached: Tensor, features: Tensor, embeddings: Tensor, counts: Tensor, places: int
    ) -> Tensor:
        """`[B, R, places, D]` behind the last of the first `counts` `[B]` new entries, `[B, R, C, D]` each.

        cached: `[B, R]` entries that `cache` holds; the new ones are read into it behind those.
        """


class ParallelDrafter(TreeDrafter):
    """What it says are the logits `[B, depth, V]` of all levels."""

    def __init__(self, model: Foreseer, target: CausalTarget, plan: Plan, rank: Rank) -> None:
        super().__init__(target, plan, rank)
        self.model = model.eval()

    @property
    def nodes(self) -> int:
        # the network's own columns, found tokens and places, need room too
        return max(super().nodes, 3 * self.plan.depth)

    def remember(self, ids: Tensor, lengths: Tensor, seen: Prefill) -> tuple[SlotCache, Tensor]:
        cache = self.model.cache(len(ids), self.target.capacity)
        features = seen.features.flatten(0, 1)
        self.model.remember(cache, features[:, : ids.shape[1] - 1], self.embeddings(ids, seen)[:, 1:])
        return cache, lengths - 2

    def read(self, drafts: Growth, tokens: Tensor, features: Tensor, counts: Tensor) -> Tensor:
        embeddings = self.target.embed(tokens)[:, None].expand_as(features)
        depth = self.plan.depth
        ahead = self.model.ahead(drafts.cache, drafts.cached, features, embeddings, counts, depth)
        return self.target.combine(self.target.head(ahead))

    def onward(self, said: Tensor, drafts: Growth, stem: Stem, nodes: Nodes, parents: Tensor) -> Tensor:
        return said

    def logits(self, said: Tensor, level: int, width: int) -> Tensor:
        return said[:, level, None].expand(-1, width, -1)


def last(entries: Tensor, counts: Tensor) -> Tensor:
    """Entry `counts - 1` `[B]` of `[B, R, C, D]` → `[B, R, D]`."""
    return entries[torch.arange(len(entries), device=entries.device), :, counts - 1]
