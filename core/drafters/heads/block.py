"""A block drafter: a few small layers on the target's features guess the whole block that follows in one pass.

Learned queries stand at the next K positions and attend to every entry so far and to the queries before them; keys and
values are kept of true features only (SpeechSpec). An entry holds the token that follows its feature as well, as in
EAGLE (arXiv 2401.15077, section 4.1): so the block knows the token that the target itself supplied.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.drafters.heads.medusa import MultiTokenNetwork
from polydraft.core.drafters.network.base import layers_alone, layers_like
from polydraft.core.model.cache import SlotCache
from polydraft.core.model.network import Network


class BlockNetwork(MultiTokenNetwork):
    """`fuse` [embedding, feature] → D, then `depth` layers of the target's own kind; no embeddings, no head."""

    kind, title = "block", "block drafter"

    def __init__(self, target_config: Any, places: int = 6, depth: int = 3) -> None:
        super().__init__(target_config, places=places, depth=depth)
        self.places = places
        self.config = layers_like(target_config, depth)
        size = self.config.hidden_size
        self.fuse = nn.Linear(2 * size, size)
        self.queries = nn.Parameter(0.02 * torch.randn(places, size))
        self.layers: PreTrainedModel = layers_alone(self.config)

    @cached_property
    def network(self) -> Network:
        """Made when first used, on the device and in the type that the weights then have."""
        return Network(self.layers, self.config)

    def fused(self, features: Tensor, embeddings: Tensor) -> Tensor:
        return self.fuse(torch.cat([embeddings, features], -1).to(self.fuse.weight.dtype))

    def everywhere(self, features: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        """All blocks side by side behind the sequence: a query sees the entries up to its start, and its own block."""
        entries, places = features.shape[1], self.places
        ends = torch.arange(entries, device=starts.device)
        block = torch.cat([ends, entries + torch.arange(len(starts), device=starts.device).repeat_interleave(places)])
        first = torch.cat([ends, starts.repeat_interleave(places)])  # the last entry each column sees
        place = torch.arange(1, places + 1, device=starts.device)
        position = torch.cat([ends, (starts[:, None] + place).flatten()])
        mine = (block[:, None] == block) & (position[:, None] >= position)
        visible = (torch.arange(len(block), device=starts.device) <= first[:, None]) | mine
        position = position[None]
        inputs = torch.cat([self.fused(features, embeddings), self.queries.repeat(len(features), len(starts), 1)], 1)
        mask = self.network.masks(visible[None], position, position)
        read = self.layers(inputs_embeds=inputs, position_ids=position, attention_mask=mask, use_cache=False)
        return read.last_hidden_state[:, entries:].unflatten(1, (-1, places))

    def cache(self, branches: int) -> SlotCache:
        return self.network.cache(branches)

    def remember(self, cache: SlotCache, features: Tensor, embeddings: Tensor, rows: slice) -> None:
        self.network.prefill(cache, self.fused(features, embeddings), rows)

    def ahead(
        self, cache: SlotCache, cached: Tensor, features: Tensor, embeddings: Tensor, counts: Tensor, places: int
    ) -> Tensor:
        """New entries and queries in one pass."""
        rows, branches, entries, _ = features.shape
        queries = self.queries[:places].expand(rows * branches, -1, -1)
        inputs = torch.cat([self.fused(features, embeddings).flatten(0, 1), queries], 1)
        column = torch.arange(entries + places, device=counts.device)
        real = (column >= entries) | (column < counts[:, None])  # rows have fewer new entries than others
        lineage = (column[:, None] >= column) & real[:, None]
        depth = torch.where(column < entries, column, column - entries + counts[:, None])
        read = self.network.tree_pass(cache, inputs, lineage, depth, cached)
        return read[:, entries:].unflatten(0, cached.shape)
