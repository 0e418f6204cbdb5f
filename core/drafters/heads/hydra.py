"""Hydra heads: the guess for each place knows what was guessed for the places before it.

A head reads the target's last feature and the embeddings of all tokens since, the root included, which Medusa's heads
never see. No attention and no cache: a level of a tree is one small product on its nodes.
Ankner et al. 2024, Hydra (arXiv 2402.05109), section 3. As with our Medusa heads the vocabulary projection is the
target's own frozen one, and an untrained head repeats the target's last feature.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.drafters.heads.medusa import last
from polydraft.core.drafters.network.base import FeatureNetwork, tables
from polydraft.core.drafters.network.reading import ReadState, in_branches
from polydraft.core.drafters.tree.candidates import Tree
from polydraft.core.drafters.tree.drafter import TreeDrafter
from polydraft.core.drafters.tree.plans import Plan, Rank
from polydraft.core.model.cache import SlotCache
from polydraft.core.model.kernels import layer, weight_of
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
        self.hidden = hidden or self.size
        reads = [nn.Linear((2 + place) * self.size, self.hidden) for place in range(places)]
        says = [nn.Linear(self.hidden, self.size) for _ in range(places)]
        for head in says:
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        self.reads, self.says = nn.ModuleList(reads), nn.ModuleList(says)

    def forward(self, known: Tensor) -> Tensor:
        """`[..., (1 + k) D]`, a feature and the k tokens since, → the feature guessed next, `[..., D]`."""
        place = known.shape[-1] // self.size - 2
        known = known.to(self.says[place].weight.dtype)
        return self.saying(place, known[..., : self.size], self.reads[place](known))

    def saying(self, place: int, feature: Tensor, read: Tensor) -> Tensor:
        """The feature that head `place` guesses behind `feature` `[..., D]`; read: `[..., H]`, what its V makes."""
        said: Tensor = feature + self.says[place](F.silu(read))
        return said

    def everywhere(self, features: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        """`[B, S, K, D]` behind the entries `starts` `[S]` of whole sequences; as in `MultiTokenNetwork`."""
        final = embeddings.shape[1] - 1
        known, guessed = features[:, starts], []
        for place in range(self.places):
            since = embeddings[:, (starts + place).clamp(max=final)]
            known = torch.cat([known, since.to(known.dtype)], -1)
            guessed.append(self(known))
        return torch.stack(guessed, 2)


@dataclass(frozen=True)
class Known:
    """What head `place` and the K - 1 behind it know at the nodes of a level: feature `[B, R, 1, D]`, and read
    `[B, R, W, K * H]`, the sums of what each has read."""

    place: int
    feature: Tensor
    read: Tensor


class HydraDrafter(TreeDrafter):
    """What it says of a level is what is `Known` there; weights are read when it is made.

    `V_k [h, e_0, …]` is a sum over the feature and every token since: what a token adds to all heads behind it is one
    product, or a line of a table where there are few ids.
    """

    def __init__(self, model: HydraHeads, target: CausalTarget, plan: Plan, rank: Rank) -> None:
        super().__init__(target, plan, rank)
        self.model = model.eval()
        begins, biases, adds = summands(model, plan.depth)
        self.begins, self.dtype = layer(begins, biases), begins.dtype
        self.adds = tables(target, adds) or [partial(embedded, target, layer(add)) for add in adds]

    def remember(self, cache: SlotCache | None, seen: Prefill) -> tuple[SlotCache, Tensor]:
        cache = SlotCache(0, seen.lengths.shape[1]) if cache is None else cache
        cache.join(len(seen.lengths))
        return cache, (seen.lengths - 2).clamp(min=0)

    def read(self, state: State, own: ReadState, tokens: Tensor, features: Tensor) -> Known:
        return self.knowing(last(features, own.counts)[:, :, None], tokens.gather(1, own.counts[:, None] - 1))

    def onward(self, said: Known, own: ReadState, tree: Tree) -> Known:
        alone = said.read.shape[2] == tree.width == 1  # a chain goes on from the one node there is
        read = said.read if alone else in_branches(said.read, tree.above)
        place, left = said.place + 1, read[..., self.model.hidden :]
        return Known(place, said.feature, left + self.adds[place](tree.newest)[:, None])

    def knowing(self, feature: Tensor, root: Tensor) -> Known:
        """A feature `[B, R, 1, D]` and the token that came of it, ids `[B, 1]`."""
        feature = feature.to(self.dtype)
        return Known(0, feature, self.begins(feature) + self.adds[0](root)[:, None])

    def logits(self, said: Known, state: State, tree: Tree, t: Tensor) -> Tensor:
        guessed = self.model.saying(said.place, said.feature, self.reads(said, state, t))
        return self.target.combine(self.target.head(guessed), state.settings, t)

    def reads(self, said: Known, state: State, t: Tensor) -> Tensor:
        """What the head whose turn it is has read, `[B, R, W, H]`."""
        return said.read[..., : self.model.hidden]


def embedded(target: CausalTarget, add: nn.Linear, ids: Tensor) -> Tensor:
    """What `add` makes of the embeddings of ids, `[..., K * H]`."""
    made: Tensor = add(target.embed(ids).to(add.weight.dtype))
    return made


def summands(model: HydraHeads, depth: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Weight and bias of what the feature begins, and the weight of what the token of every level adds, for all of the
    first `depth` heads that know it: columns of their V, one head below the other."""
    heads: Any = model.reads[:depth]
    parts = [weight_of(head).split(model.size, 1) for head in heads]
    adds = [torch.cat([part[1 + place] for part in parts[place:]]) for place in range(depth)]
    return torch.cat([part[0] for part in parts]), torch.cat([head.bias.detach() for head in heads]), adds
