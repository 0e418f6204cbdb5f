"""Decoders whose layers also attend to fixed keys of every row, such as Whisper's to a sound.

    prepare_cross_attention(model)                    # before `prepare_linears`
    decoder = CrossAttentionDecoder(model.get_decoder(), config, num_fixed=1500)
    cache = decoder.create_cache(num_branches=1)      # `cache.cross` holds the fixed keys and values
    decoder.write_fixed(cache, row, encoder_states)

Layers are those of Whisper (Radford et al. 2022, arXiv 2212.04356, section 2.2; Vaswani et al. 2017, arXiv 1706.03762):
pre-norm, biases, learned positions, an MLP without gate. They are computed directly, on CPUs by one call of our C
library a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.model import attention
from polydraft.core.model.attention import AttentionHeads
from polydraft.core.model.cache import KVCache
from polydraft.core.model.decoder import TreeDecoder
from polydraft.core.model.linear import fuse_linears, is_supported_linear, pack_group, packed_group
from polydraft.core.native.decoder import DecoderSizes, LayerParts, LayerWeights, NativeDecoder, activation_kind
from polydraft.core.native.library import library
from polydraft.core.native.weights import NativeWeight

if TYPE_CHECKING:
    from collections.abc import Callable

    from polydraft.core.model.attention import Kernel


def decoder_config(config: Any) -> Any:
    """Return the configuration of a model with an encoder as that of its decoder alone."""
    decoder = config.get_text_config(decoder=True)
    decoder.max_position_embeddings = config.max_target_positions
    return decoder


def prepare_cross_attention(model: nn.Module) -> None:
    """Prepare the attention of all layers that also attend to fixed keys, in place: for inference, in few products.

    `prepare_linears` tells by names which layers read the same tensor, and queries of cross-attention read another one
    than keys and values. Keys have no bias; they get one of zeros, so that they can share a product with values that
    have one.
    """
    layers: list[Any] = [module for module in model.modules() if hasattr(module, "encoder_attn")]
    for layer in layers:
        for attn in (layer.self_attn, layer.encoder_attn):
            if attn.k_proj.bias is None and attn.v_proj.bias is not None:
                with torch.inference_mode(False):
                    attn.k_proj.bias = nn.Parameter(torch.zeros_like(attn.v_proj.bias), requires_grad=False)
        cross = layer.encoder_attn
        if cross.q_proj.weight.device.type == "cpu" and is_supported_linear(cross.q_proj):
            for members in ([cross.q_proj], [cross.k_proj, cross.v_proj]):
                pack_group(members).drop_unpacked()


class CrossAttentionDecoder(TreeDecoder):
    """Decoder that attends to fixed keys and values, as many in every row.

    Args:
        backbone (nn.Module): Whisper's decoder, or one built like it.
        config (Any): Its configuration, as `get_text_config(decoder=True)` of transformers.
        num_fixed (int): Positions of the encoder's output, S.
    """

    def __init__(self, backbone: Any, config: Any, num_fixed: int) -> None:
        super().__init__(backbone, config)
        self.num_fixed = num_fixed
        self.fused_layers: CrossAttentionLayers = CrossAttentionLayers(backbone, config)  # type: ignore[assignment]

    @property
    def is_capturable(self) -> bool:
        return False  # a graph would read the fixed keys of the rows that it was captured with

    @property
    def kv_bytes_per_row(self) -> int:
        return self.num_fixed * self.kv_bytes_per_position

    def create_cache(self, num_branches: int) -> KVCache:
        cache = super().create_cache(num_branches)
        cache.cross = KVCache(len(cache.layers), num_branches, cache.view_policy)
        cache.cross.ensure_capacity(self.num_fixed)
        return cache

    def write_fixed(self, cache: KVCache, row: int, states: Tensor) -> None:
        """Compute the fixed keys and values of a row from an encoder's output.

        Args:
            cache (KVCache): Is written to.
            row (int): Physical row.
            states (Tensor): `[S, D]`.
        """
        assert cache.cross is not None
        heads, dim = self.config.num_attention_heads, self.heads.head_dim
        for layer, store in zip(self.backbone.layers, cache.cross.layers, strict=True):  # type: ignore[arg-type]
            keys_and_values = fuse_linears([layer.encoder_attn.k_proj, layer.encoder_attn.v_proj])(states)
            keys, values = keys_and_values.view(len(states), 2, heads, dim).permute(1, 2, 0, 3)  # [heads, S, dim] each
            if not store.is_initialized:
                store.lazy_initialization(keys[None], values[None])
            store.keys[row, :, : len(states)], store.values[row, :, : len(states)] = keys, values

    def cross_attention(self, ids: Tensor, states: Tensor, heads: Sequence[tuple[int, int]]) -> Tensor:
        """Return the attention of tokens to an encoder's output, as the model itself computes it.

        Args:
            ids (Tensor): `[N]`, each with those before it.
            states (Tensor): `[S, D]`, the encoder's output.
            heads (Sequence[tuple[int, int]]): H pairs of a layer and a head.

        Returns:
            Tensor: `[H, N, S]` float32, which sums to 1 over S.
        """
        layers: Any = self.backbone.layers
        queries: dict[int, Tensor] = {}
        hooks = [
            layers[index].encoder_attn.q_proj.register_forward_hook(
                lambda _module, _inputs, output, index=index: queries.update({index: output[0]})
            )
            for index in sorted({layer for layer, _ in heads})
        ]
        try:
            self.backbone(input_ids=ids[None], encoder_hidden_states=states[None], use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        dim = self.heads.head_dim
        keys = {index: layers[index].encoder_attn.k_proj(states) for index in queries}
        parts = [(index, slice(head * dim, (head + 1) * dim)) for index, head in heads]
        scores = [queries[index][:, part].float() @ keys[index][:, part].float().T for index, part in parts]
        return (torch.stack(scores) * dim**-0.5).softmax(-1)


class CrossAttentionLayers:
    """All layers of a decoder with cross-attention, from embeddings to the final norm."""

    def __init__(self, backbone: Any, config: Any) -> None:
        """Take over the weights of a transformers decoder."""
        self.backbone = backbone
        self.layers: list[CrossAttentionLayer] = [CrossAttentionLayer(layer, config) for layer in backbone.layers]
        self.native: NativeDecoder | None = build_native(backbone, config)

    def __call__(self, inputs: Tensor, positions: Tensor, cache: KVCache, mask: Tensor) -> Tensor:
        """Run all layers on T new positions per cache row, and write their keys and values to the cache.

        Args:
            inputs (Tensor): Ids `[rows, T]` or embeddings `[rows, T, D]`.
            positions (Tensor): `[rows, T]`.
            cache (KVCache): Its write slots are set, and `cross` is filled.
            mask (Tensor): Result of `attention.fold_gqa_mask`.

        Returns:
            Tensor: Hidden states `[rows, T, D]` after the final norm.
        """
        backbone, cross = self.backbone, cache.cross
        assert cross is not None
        embedded = backbone.embed_tokens(inputs) if inputs.ndim == 2 else inputs
        hidden = embedded + F.embedding(positions, backbone.embed_positions.weight)
        if self.native is not None:
            return self.native(hidden, None, cache, mask, cross)
        cross.write_rows = cache.write_rows
        fixed_mask = mask.new_zeros(1, 1, mask.shape[2], cross.view_len)
        fixed_mask[..., cross.requested_slots :] = -torch.inf
        for layer, layer_cache, fixed in zip(self.layers, cache.layers, cross.layers, strict=True):
            hidden = layer(hidden, layer_cache, mask, fixed, fixed_mask.expand(len(hidden), -1, -1, -1))
        output: Tensor = backbone.layer_norm(hidden)
        return output


class CrossAttentionLayer:
    """Pre-norm layer: attention to the cache, attention to fixed keys, MLP."""

    def __init__(self, layer: Any, config: Any) -> None:
        """Take over the weights of a transformers decoder layer."""
        self.layer: Any = layer
        self.heads: Any = config.num_attention_heads
        self.head_dim: int = AttentionHeads.from_config(config).head_dim
        self.kernel: Kernel = attention.kernel_from_config(layer.self_attn.config)
        attn, cross = layer.self_attn, layer.encoder_attn
        self.qkv_proj: Callable[[Tensor], Tensor] = fuse_linears([attn.q_proj, attn.k_proj, attn.v_proj])
        self.out_proj: Any = attn.out_proj
        self.cross_query: Any = cross.q_proj
        self.cross_output: Any = cross.out_proj

    def __call__(self, hidden: Tensor, cache: Any, mask: Tensor, fixed: Any, fixed_mask: Tensor) -> Tensor:
        """Run the layer.

        Args:
            hidden (Tensor): `[rows, T, D]`.
            cache (Any): The layer's `KVCacheLayer`.
            mask (Tensor): Result of `attention.fold_gqa_mask`.
            fixed (Any): `KVCacheLayer` of the fixed keys.
            fixed_mask (Tensor): `[rows, 1, T + padding, slots]`, which of them exist.

        Returns:
            Tensor: `[rows, T, D]`.
        """
        layer = self.layer
        queries, keys, values = self.split_heads(self.qkv_proj(layer.self_attn_layer_norm(hidden)), 3)
        keys, values = cache.update(keys, values)
        hidden = hidden + self.out_proj(self.attend(queries, keys, values, mask))
        (queries,) = self.split_heads(self.cross_query(layer.encoder_attn_layer_norm(hidden)), 1)
        keys, values = fixed.attention_views()
        hidden = hidden + self.cross_output(self.attend(queries, keys, values, fixed_mask))
        output: Tensor = hidden + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(hidden))))
        return output

    def split_heads(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Return the parts of a projection `[rows, T, parts * heads * head_dim]`, `[rows, heads, T, head_dim]` each."""
        split = projected.unflatten(-1, (parts, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        return split.unbind(0)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Compute attention, `[rows, T, heads * head_dim]`."""
        return self.kernel(queries, keys, values, mask, self.head_dim**-0.5).flatten(2)


def build_native(backbone: Any, config: Any) -> NativeDecoder | None:
    """Return the layers as a decoder of the C library; None if it is not used or lacks what they need."""
    activation = activation_kind(backbone.layers[0].activation_fn) if len(backbone.layers) else None
    if library() is None or activation is None:
        return None
    parts = []
    for layer in backbone.layers:
        groups = [packed_group(members) for members in layer_linears(layer)]
        weights = [group.weight for group in groups if group is not None and isinstance(group.weight, NativeWeight)]
        if len(weights) < len(groups):
            return None
        norms = (layer.self_attn_layer_norm, layer.final_layer_norm, None, None, layer.encoder_attn_layer_norm)
        parts.append(LayerParts(LayerWeights(*weights), *norms))
    heads, head_dim = config.num_attention_heads, AttentionHeads.from_config(config).head_dim
    sizes = DecoderSizes(heads * head_dim, heads, heads, head_dim, head_dim**-0.5, activation, is_gated=False)
    return NativeDecoder(parts[0].weights.qkv.library, sizes, parts, backbone.layer_norm)


def layer_linears(layer: Any) -> list[list[nn.Linear]]:
    """Return the linear layers that a pass of a decoder layer calls, grouped by the tensor that they read.

    In the order of `LayerWeights`: Q, K and V; output; the MLP's first and second; queries and output of attention to
    fixed keys.
    """
    attn, cross = layer.self_attn, layer.encoder_attn
    return [
        [attn.q_proj, attn.k_proj, attn.v_proj], [attn.out_proj], [layer.fc1], [layer.fc2],
        [cross.q_proj], [cross.out_proj],
    ]  # fmt: skip
