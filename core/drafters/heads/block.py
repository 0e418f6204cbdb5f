"""Block drafter: a few small layers on the target's hidden states predict the whole next block in one pass.

Learned queries stand at the next K positions and attend to every entry so far and to the queries before them; keys and
values are kept of true hidden states only (SpeechSpec). An entry also holds the token that follows its hidden state, as
in EAGLE (arXiv 2401.15077, section 4.1): so the block knows the token that the target itself chose.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.drafters.heads.medusa import MultiTokenModel
from polydraft.core.drafters.network.base import build_layers, layer_config
from polydraft.core.model.cache import KVCache
from polydraft.core.model.decoder import TreeDecoder


class BlockModel(MultiTokenModel):
    """Block drafter: `fuse` [embedding, hidden state] → D, then `depth` layers of the target's architecture.

    It has no embeddings and no LM head of its own.
    """

    kind, title = "block", "block drafter"

    def __init__(self, target_config: Any, places: int = 6, depth: int = 3) -> None:
        super().__init__(target_config, places=places, depth=depth)
        self.num_positions = places
        self.config = layer_config(target_config, depth)
        size = self.config.hidden_size
        self.fuse = nn.Linear(2 * size, size)
        self.queries = nn.Parameter(0.02 * torch.randn(places, size))
        self.layers: PreTrainedModel = build_layers(self.config)

    @cached_property
    def decoder(self) -> TreeDecoder:
        """Decoder over a KV cache, built at first use for the device and type that the weights then have."""
        return TreeDecoder(self.layers, self.config)

    def fuse_inputs(self, hidden_states: Tensor, embeddings: Tensor) -> Tensor:
        """Return `fuse` of entries, `[..., D]`."""
        return self.fuse(torch.cat([embeddings, hidden_states], -1).to(self.fuse.weight.dtype))

    def forward_all_starts(self, hidden_states: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        """Predict after many entries at once: the blocks stand after the sequence, one after the other.

        A query attends to the entries up to its start and to its own block.
        """
        entries, places = hidden_states.shape[1], self.num_positions
        ends = torch.arange(entries, device=starts.device)
        block = torch.cat([ends, entries + torch.arange(len(starts), device=starts.device).repeat_interleave(places)])
        last_visible = torch.cat([ends, starts.repeat_interleave(places)])  # last entry that each column attends to
        offset = torch.arange(1, places + 1, device=starts.device)
        position = torch.cat([ends, (starts[:, None] + offset).flatten()])
        in_same_block = (block[:, None] == block) & (position[:, None] >= position)
        visible = (torch.arange(len(block), device=starts.device) <= last_visible[:, None]) | in_same_block
        position = position[None]
        queries = self.queries.repeat(len(hidden_states), len(starts), 1)
        inputs = torch.cat([self.fuse_inputs(hidden_states, embeddings), queries], 1)
        mask = self.decoder.build_masks(visible[None], position, position)
        outputs = self.layers(inputs_embeds=inputs, position_ids=position, attention_mask=mask, use_cache=False)
        return outputs.last_hidden_state[:, entries:].unflatten(1, (-1, places))

    def create_cache(self, branches: int) -> KVCache:
        return self.decoder.create_cache(branches)

    def prefill(self, cache: KVCache, hidden_states: Tensor, embeddings: Tensor, rows: slice) -> None:
        self.decoder.prefill(cache, self.fuse_inputs(hidden_states, embeddings), rows)

    def forward_draft(
        self, cache: KVCache, num_cached: Tensor, hidden_states: Tensor, embeddings: Tensor, num_new: Tensor,
        positions: int,
    ) -> Tensor:  # fmt: skip
        """Process new entries and queries in one pass."""
        rows, branches, entries, _ = hidden_states.shape
        queries = self.queries[:positions].expand(rows * branches, -1, -1)
        inputs = torch.cat([self.fuse_inputs(hidden_states, embeddings).flatten(0, 1), queries], 1)
        column = torch.arange(entries + positions, device=num_new.device)
        is_real = (column >= entries) | (column < num_new[:, None])  # some rows have fewer new entries than others
        ancestor_mask = (column[:, None] >= column) & is_real[:, None]
        depth = torch.where(column < entries, column, column - entries + num_new[:, None])
        outputs = self.decoder.forward_tree(cache, inputs, ancestor_mask, depth, num_cached)
        return outputs[:, entries:].unflatten(0, num_cached.shape)
