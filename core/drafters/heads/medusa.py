"""Drafters that say all levels of a tree at once, and Medusa heads, the smallest of them.

What is guessed for a place does not depend on what is guessed before it, so a node's law is that of its depth (seen
through the sampler with the node's own path), and a tree of any shape costs one pass of a small network.

Medusa: K guesses from the target's last feature alone, each a residual block. Cai et al. 2024 (arXiv 2401.10774),
section 2.1; on speech codes Li et al. 2024, VADUSA (arXiv 2410.21951). As published every head ends in a vocabulary
projection of its own; here all share the target's frozen one, applied to the head's transformed feature: K·D² weights
instead of K·(D² + D·V), and an untrained head already says what the target said one place earlier.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from polydraft.core.drafters.network.base import FeatureNetwork
from polydraft.core.drafters.network.reading import ReadState, embeddings
from polydraft.core.drafters.tree.candidates import Tree
from polydraft.core.drafters.tree.drafter import TreeDrafter
from polydraft.core.drafters.tree.plans import Plan, Rank
from polydraft.core.model.cache import SlotCache
from polydraft.core.rows import places
from polydraft.core.state import State
from polydraft.core.target import CausalTarget, Prefill


class MultiTokenNetwork(FeatureNetwork):
    """A network that guesses the target's features of the next `places` columns, for the target's own frozen head.

    Entry i is the target's feature of token i (what chose token i + 1) and the embedding of token i + 1; place k behind
    it is the column of token i + 1 + k, whose law is that of token i + 2 + k. The root, which the target itself
    supplied, is the token of the last entry: its feature is not known yet, and is the first that is guessed.
    """

    places: int

    @abstractmethod
    def everywhere(self, features: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        """`[B, S, K, D]` behind the entries `starts` `[S]` of whole sequences, `[B, I, D]` each; for training."""

    def cache(self, branches: int) -> SlotCache:
        """What it remembers of earlier entries; nothing unless it says otherwise."""
        return SlotCache(0, branches)

    def remember(self, cache: SlotCache, features: Tensor, embeddings: Tensor, rows: slice) -> None:
        """Read prompts, `[rows, I, D]` each, into `rows` of the cache."""

    @abstractmethod
    def ahead(
        self, cache: SlotCache, cached: Tensor, features: Tensor, embeddings: Tensor, counts: Tensor, places: int
    ) -> Tensor:
        """`[B, R, places, D]` behind the last of the first `counts` `[B]` new entries, `[B, R, C, D]` each.

        cached: `[B, R]` entries that `cache` holds; the new ones are read into it behind those.
        """


class MultiTokenDrafter(TreeDrafter):
    """What it says are the logits `[B, depth, V]` of all levels."""

    def __init__(self, model: MultiTokenNetwork, target: CausalTarget, plan: Plan, rank: Rank) -> None:
        super().__init__(target, plan, rank)
        self.model = model.eval()

    def remember(self, cache: SlotCache | None, seen: Prefill) -> tuple[SlotCache, Tensor]:
        cache = self.model.cache(seen.lengths.shape[1]) if cache is None else cache
        rows, features = cache.join(len(seen.lengths)), seen.features.flatten(0, 1)[:, :-1]
        if features.shape[1]:
            self.model.remember(cache, features, embeddings(self.target, seen)[:, 1:], rows)
        return cache, (seen.lengths - 2).clamp(min=0)

    def read(self, state: State, own: ReadState, tokens: Tensor, features: Tensor) -> Tensor:
        read, depth = self.target.embed(tokens)[:, None].expand_as(features), self.plan.depth
        own.cache.reach(state.longest + tokens.shape[1] + depth)
        ahead = self.model.ahead(own.cache, own.cached, features, read, own.counts, depth)
        t = (state.generated + own.waiting)[:, None] + places(depth, tokens.device)
        return self.target.combine(self.target.head(ahead), state.settings, t)

    def onward(self, said: Tensor, own: ReadState, tree: Tree) -> Tensor:
        return said

    def logits(self, said: Tensor, state: State, tree: Tree, t: Tensor) -> Tensor:
        return said[:, len(tree.levels), None].expand(-1, tree.width, -1)


def last(entries: Tensor, counts: Tensor) -> Tensor:
    """Entry `counts - 1` `[B]` of `[B, R, C, D]` → `[B, R, D]`."""
    return entries[places(len(entries), entries.device), :, counts - 1]


class MedusaHeads(MultiTokenNetwork):
    """`h + SiLU(W_k h + b_k)` for k = 1 … `places`, with W and b zero at first; one product for all heads."""

    kind, title = "heads", "Medusa heads"

    def __init__(self, target_config: Any, places: int = 4) -> None:
        super().__init__(target_config, places=places)
        self.places = places
        size = target_config.hidden_size
        self.blocks = nn.Linear(size, places * size)
        nn.init.zeros_(self.blocks.weight)
        nn.init.zeros_(self.blocks.bias)

    def forward(self, features: Tensor) -> Tensor:
        """`[..., D]` → `[..., K, D]`."""
        features = features.to(self.blocks.weight.dtype)
        turned = self.blocks(features).unflatten(-1, (self.places, -1))
        return features[..., None, :] + torch.nn.functional.silu(turned)

    def everywhere(self, features: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        return self(features[:, starts])

    def ahead(
        self, cache: SlotCache, cached: Tensor, features: Tensor, embeddings: Tensor, counts: Tensor, places: int
    ) -> Tensor:
        return self(last(features, counts))[:, :, :places]
