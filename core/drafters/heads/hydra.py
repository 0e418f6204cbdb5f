"""Hydra heads: the guess for each place knows what was guessed for the places before it.

A head reads the target's last feature and the embeddings of all tokens since, the root included, which Medusa's heads
never see. No attention and no cache: a level of a tree is one small product on its nodes.
Ankner et al. 2024, Hydra (arXiv 2402.05109), section 3. As with our Medusa heads the vocabulary projection is the
target's own frozen one, and an untrained head repeats the target's last feature.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from polydraft.core.drafters.heads.medusa import last
from polydraft.core.drafters.network.base import FeatureNetwork
from polydraft.core.drafters.network.reading import ReadState, take
from polydraft.core.drafters.tree.candidates import Tree
from polydraft.core.drafters.tree.drafter import TreeDrafter
from polydraft.core.drafters.tree.plans import Plan, Rank
from polydraft.core.model.cache import SlotCache
from polydraft.core.state import State
from polydraft.core.target import CausalTarget, Prefill


class HydraHeads(FeatureNetwork):
    """`h + W_k SiLU(V_k [h, e_0, …, e_k-1])` for k = 1 … `places`: e_0 embeds the root, e_j the token of level j.

    hidden: numbers between V and W; None is as many as a feature has.
    """

    kind, title = "hydra", "Hydra heads"

    def __init__(self, target_config: Any, places: int = 5, hidden: int | None = None) -> None:
        super().__init__(target_config, places=places, **({} if hidden is None else {"hidden": hidden}))
        self.places, self.size = places, target_config.hidden_size
        width = hidden or self.size
        reads = [nn.Linear((2 + place) * self.size, width) for place in range(places)]
        says = [nn.Linear(width, self.size) for _ in range(places)]
        for head in says:
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        self.reads, self.says = nn.ModuleList(reads), nn.ModuleList(says)

    def forward(self, known: Tensor) -> Tensor:
        """`[..., (1 + k) D]`, a feature and the k tokens since, → the feature guessed next, `[..., D]`."""
        place = known.shape[-1] // self.size - 2
        read, say = self.reads[place], self.says[place]
        known = known.to(say.weight.dtype)
        return known[..., : self.size] + say(nn.functional.silu(read(known)))

    def everywhere(self, features: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        """`[B, S, K, D]` behind the entries `starts` `[S]` of whole sequences; as in `MultiTokenNetwork`."""
        final = embeddings.shape[1] - 1
        known, guessed = features[:, starts], []
        for place in range(self.places):
            since = embeddings[:, (starts + place).clamp(max=final)]
            known = torch.cat([known, since.to(known.dtype)], -1)
            guessed.append(self(known))
        return torch.stack(guessed, 2)


class HydraDrafter(TreeDrafter):
    """What it says of a level is what its nodes know: the feature and the embeddings since, `[B, R, W, (2 + k) D]`."""

    def __init__(self, model: HydraHeads, target: CausalTarget, plan: Plan, rank: Rank) -> None:
        super().__init__(target, plan, rank)
        self.model = model.eval()

    def remember(self, cache: SlotCache | None, seen: Prefill) -> tuple[SlotCache, Tensor]:
        cache = SlotCache(0, seen.lengths.shape[1]) if cache is None else cache
        cache.join(len(seen.lengths))
        return cache, (seen.lengths - 2).clamp(min=0)

    def read(self, state: State, own: ReadState, tokens: Tensor, features: Tensor) -> Tensor:
        root = tokens.gather(1, own.counts[:, None] - 1)
        return self.knowing(last(features, own.counts)[:, :, None], root)

    def onward(self, said: Tensor, own: ReadState, tree: Tree) -> Tensor:
        alone = said.shape[2] == tree.width == 1  # a chain goes on from the one node there is
        return self.knowing(said if alone else take(said, tree.above), tree.newest)

    def knowing(self, known: Tensor, ids: Tensor) -> Tensor:
        """One more token, ids `[B, W]`."""
        embeddings = self.target.embed(ids)[:, None].expand(-1, known.shape[1], -1, -1)
        return torch.cat([known, embeddings.to(known.dtype)], -1)

    def logits(self, said: Tensor, state: State, tree: Tree, t: Tensor) -> Tensor:
        return self.target.combine(self.target.head(self.model(said)), state.settings, t)
