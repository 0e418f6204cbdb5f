"""Block drafter: a few small layers on the target's hidden states predict the whole next block in one pass.

Learned queries take the next K positions and attend to all inputs so far and to the queries before them; only keys and
values of true hidden states are cached (SpeechSpec). An input is a hidden state with the embedding of the token after
it, as in EAGLE (arXiv 2401.15077, section 4.1), so the block is given the token that the target itself chose.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.drafters.heads.medusa import MultiTokenModel
from polydraft.core.drafters.network.base import build_layers, layer_config, unsupported_layers_error
from polydraft.core.model.cache import KVCache
from polydraft.core.model.decoder import TreeDecoder


class BlockModel(MultiTokenModel):
    """Block drafter: `fuse` [embedding, hidden state] → D, then `depth` layers of the target's architecture.

    It has no embeddings and no LM head: those of the target are used.

    Args:
        target_config (Any): Text configuration of the target.
        places (int): Number K of positions that a pass predicts.
        depth (int): Number of layers.
        words (list[int] | None): Token ids that may be drafted; None for all.
    """

    kind: ClassVar[str] = "block"
    title: ClassVar[str] = "block drafter"

    def __init__(
        self, target_config: Any, places: int = 6, depth: int = 3, words: list[int] | None = None
    ) -> None:
        """Create untrained weights: `fuse`, `places` learned queries and `depth` layers."""
        super().__init__(target_config, places=places, depth=depth)
        self.restrict_vocab(words)
        self.num_positions = places
        if target_config.is_encoder_decoder:
            raise unsupported_layers_error(target_config)
        self.config: Any = layer_config(target_config, depth)
        size = self.config.hidden_size
        self.fuse: nn.Linear = nn.Linear(2 * size, size)
        # 0.02: usual scale of untrained embeddings
        self.queries: nn.Parameter = nn.Parameter(0.02 * torch.randn(places, size))
        self.layers: PreTrainedModel = build_layers(self.config)

    @cached_property
    def decoder(self) -> TreeDecoder:
        """Decoder over a KV cache, built at first use for the device and type that the weights then have."""
        return TreeDecoder(self.layers, self.config)

    def fuse_inputs(self, hidden_states: Tensor, embeddings: Tensor) -> Tensor:
        """Return one layer input, `[..., D]`, per pair of a hidden state and the embedding of the token after it."""
        return self.fuse(torch.cat([embeddings, hidden_states], -1).to(self.fuse.weight.dtype))

    def forward_all_starts(self, hidden_states: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        """Predict the next K hidden states from many positions of whole sequences at once, for training.

        The layers run over the I inputs of a sequence followed by S blocks of K queries. A query attends to the inputs
        up to its start and to the queries of its own block up to itself.

        Args:
            hidden_states (Tensor): [B, I, D] target hidden states of tokens 0 to I - 1.
            embeddings (Tensor): [B, I, D] embeddings of tokens 1 to I.
            starts (Tensor): [S] indices of the inputs to predict after.

        Returns:
            Tensor: [B, S, K, D] predicted hidden states of tokens start + 1 to start + K.
        """
        num_inputs, block_size = hidden_states.shape[1], self.num_positions
        # `last_visible` is the last input that each input or query attends to
        inputs_index = torch.arange(num_inputs, device=starts.device)
        block_index = num_inputs + torch.arange(len(starts), device=starts.device).repeat_interleave(block_size)
        block = torch.cat([inputs_index, block_index])  # [I + S * K]; every input is a block of its own
        last_visible = torch.cat([inputs_index, starts.repeat_interleave(block_size)])  # [I + S * K]
        # queries take the positions after their start
        offset = torch.arange(1, block_size + 1, device=starts.device)
        position = torch.cat([inputs_index, (starts[:, None] + offset).flatten()])
        in_same_block = (block[:, None] == block) & (position[:, None] >= position)
        # [I + S * K, I + S * K]; inputs have the indices 0 … I - 1, so the comparison with an input's index only shows
        # inputs, and queries see each other by `in_same_block`
        visible = (torch.arange(len(block), device=starts.device) <= last_visible[:, None]) | in_same_block
        position = position[None]
        queries = self.queries.repeat(len(hidden_states), len(starts), 1)
        inputs = torch.cat([self.fuse_inputs(hidden_states, embeddings), queries], 1)
        mask = self.decoder.build_masks(visible[None], position, position)
        outputs = self.layers(inputs_embeds=inputs, position_ids=position, attention_mask=mask, use_cache=False)
        return outputs.last_hidden_state[:, num_inputs:].unflatten(1, (-1, block_size))

    def create_cache(self, cfg_branches: int) -> KVCache:
        """Return an empty KV cache of the layers, for rows of `cfg_branches` guidance branches."""
        return self.decoder.create_cache(cfg_branches)

    def prefill(self, cache: KVCache, hidden_states: Tensor, embeddings: Tensor, rows: slice) -> None:
        """Write the KV entries of `[B*R, I, D]` prompt inputs to `rows` of the cache."""
        self.decoder.prefill(cache, self.fuse_inputs(hidden_states, embeddings), rows)

    def forward_draft(
        self, cache: KVCache, num_cached: Tensor, hidden_states: Tensor, embeddings: Tensor, num_new: Tensor,
        positions: int,
    ) -> Tensor:  # fmt: skip
        """Run the layers over new inputs followed by queries, and return the hidden states that the queries predict.

        Args:
            cache (KVCache): Cache of earlier inputs; the new ones are written after them.
            num_cached (Tensor): [B, R] valid positions of the cache, for R guidance branches.
            hidden_states (Tensor): [B, R, C, D] target hidden states of the position before each new token.
            embeddings (Tensor): [B, R, C, D] embeddings of the new tokens.
            num_new (Tensor): [B] number of new tokens of each row; the rest of C is padding.
            positions (int): Number of positions to predict, one query each.

        Returns:
            Tensor: [B, R, positions, D].
        """
        batch_size, cfg_branches, num_inputs, _ = hidden_states.shape
        queries = self.queries[:positions].expand(batch_size * cfg_branches, -1, -1)
        inputs = torch.cat([self.fuse_inputs(hidden_states, embeddings).flatten(0, 1), queries], 1)
        index = torch.arange(num_inputs + positions, device=num_new.device)
        is_unpadded = (index >= num_inputs) | (index < num_new[:, None])
        # [B, C + positions, C + positions] causal, without padded inputs
        ancestor_mask = (index[:, None] >= index) & is_unpadded[:, None]
        # positions of queries follow the last new token of the row, whatever the padding is
        depth = torch.where(index < num_inputs, index, index - num_inputs + num_new[:, None])
        # KV entries of queries are written, too, but not counted in `num_cached`: the next new tokens overwrite them
        outputs = self.decoder.forward_tree(cache, inputs, ancestor_mask, depth, num_cached)
        return outputs[:, num_inputs:].unflatten(0, num_cached.shape)
