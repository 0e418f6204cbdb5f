"""Llama-style decoder layers, computed directly rather than by their own forward, whose overhead is half a small pass.

    decoder = FusedDecoder.from_backbone(backbone)      # None if the model's own forward does anything else

Supported are pre-norm attention with rotary positions and a gated MLP, with biases and query/key norms if there are
any: Llama, Mistral, Qwen2, Qwen3 and models built like them. Module names do not tell what a class computes between its
parts. Therefore a twin, with the same settings and as many layers but narrow ones, is run both ways in float64, once
per configuration.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from polydraft.core.batched_state import cached_arange
from polydraft.core.checks.system_errors import system_error
from polydraft.core.model import attention, triton_ops
from polydraft.core.model.attention import AttentionHeads
from polydraft.core.model.linear import fuse_linears

TWIN_SIZES = {"hidden_size": 48, "intermediate_size": 40, "vocab_size": 24}
TWIN_LENGTH = 9  # positions that a twin is compared on
BACKBONE_PARTS = ("embed_tokens", "layers", "norm", "rotary_emb")
TOLERANCE = 1e-5  # norms and angles are computed in float32 whatever the model's dtype
matches_by_config: dict[str, bool] = {}

Norm = Callable[[Tensor], Tensor]
# (residual stream, pending residual) -> (their sum, the norm of the sum)
ResidualNorm: TypeAlias = Callable[[Tensor, "Tensor | None"], tuple[Tensor, Tensor]]
RotaryAngles: TypeAlias = tuple[Tensor, Tensor]  # cosines and signed sines, [rows, C, 1, D] each


class FusedDecoder:
    """Embeddings, layers and final norm of a backbone, with a table of rotary angles."""

    def __init__(self, backbone: Any) -> None:
        self.embed, self.rotary = backbone.embed_tokens, backbone.rotary_emb
        self.stack = [FusedDecoderLayer(layer, backbone.config) for layer in backbone.layers]
        self.norm = residual_norm_fn(backbone.norm)
        self.table: Tensor | None = None  # [slots, 2 * D] cosines and signed sines

    @staticmethod
    def from_backbone(backbone: Any) -> FusedDecoder | None:
        """Return a decoder that computes the same as `backbone`, or None if its layers are of another kind."""
        if not all(hasattr(backbone, name) for name in BACKBONE_PARTS):
            return None
        try:
            decoder = FusedDecoder(backbone)
        except AttributeError:  # parts of other names
            return None
        key = type(backbone).__name__ + json.dumps(backbone.config.to_dict(), sort_keys=True, default=str)
        if key not in matches_by_config:
            matches_by_config[key] = matches_backbone(backbone)
        return decoder if matches_by_config[key] else None

    def __call__(self, inputs: Tensor, positions: Tensor, cache: Any, mask: Tensor) -> Tensor:
        """Return hidden states `[rows, C, D]`.

        Args:
            inputs (Tensor): Ids `[rows, C]` or embeddings `[rows, C, D]`.
            positions (Tensor): `[rows, C]`.
            cache (Any): A `KVCache` whose write slots are set.
            mask (Tensor): Folded attention mask.
        """
        hidden = self.embed(inputs) if inputs.ndim == 2 else inputs
        angles = self.rotary_angles(hidden, positions, cache)
        residual = None  # output of the previous layer's MLP, not yet added
        for layer, layer_cache in zip(self.stack, cache.layers, strict=True):
            hidden, residual = layer(hidden, residual, angles, layer_cache, mask)
        return self.norm(hidden, residual)[1]

    def rotary_angles(self, hidden: Tensor, positions: Tensor, cache: Any) -> RotaryAngles:
        """Return cosines and signed sines at `positions` `[rows, C]`, from a table where positions are slots."""
        if cache.rope_offsets is not None:
            return signed_rotary_angles(*self.rotary(hidden, positions))
        table, kind = self.table, (hidden.dtype, hidden.device)
        if table is None or len(table) < cache.view_len or (table.dtype, table.device) != kind:
            slots = cached_arange(cache.view_len, hidden.device)
            cos, sin = signed_rotary_angles(*self.rotary(hidden[:1], slots[None]))
            self.table = table = torch.cat([cos[0], sin[0]], -1)[:, 0]
        cos, sin = F.embedding(positions, table)[:, :, None].chunk(2, -1)
        return cos, sin


class FusedDecoderLayer:
    """One decoder layer, with fused projections and norms."""

    def __init__(self, layer: Any, config: Any) -> None:
        attn, mlp, self.heads = layer.self_attn, layer.mlp, AttentionHeads.from_config(config)
        self.head_dim, self.num_kv_heads = self.heads.head_dim, config.num_attention_heads // self.heads.group_size
        self.num_heads, self.scaling = config.num_attention_heads, getattr(attn, "scaling", None)
        self.kernel = attention.kernel_from_config(config)
        self.input_norm, self.post_attention_norm = (
            residual_norm_fn(getattr(layer, name)) for name in ("input_layernorm", "post_attention_layernorm")
        )
        self.query_norm, self.key_norm = (
            rms_norm_fn(getattr(attn, name)) if hasattr(attn, name) else None for name in ("q_norm", "k_norm")
        )
        self.qkv_proj = fuse_linears([attn.q_proj, attn.k_proj, attn.v_proj])
        self.gate_up_proj = fuse_linears([mlp.gate_proj, mlp.up_proj])
        self.o_proj, self.down_proj = fuse_linears([attn.o_proj]), fuse_linears([mlp.down_proj])
        self.activation = gated_activation_fn(mlp.act_fn, mlp.down_proj.weight)
        self.rotate_and_store = rotary_kv_update_fn(attn.o_proj.weight)

    def __call__(
        self, hidden: Tensor, residual: Tensor | None, angles: RotaryAngles, cache: Any, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream and the pending residual after this layer, given those before it."""
        hidden, normed = self.input_norm(hidden, residual)
        attended = self.o_proj(self.attend(normed, angles, cache, mask))
        hidden, normed = self.post_attention_norm(hidden, attended)
        return hidden, self.down_proj(self.activation(self.gate_up_proj(normed)))

    def attend(self, hidden: Tensor, angles: RotaryAngles, cache: Any, mask: Tensor) -> Tensor:
        """Return the attention output of all heads, `[rows, C, heads * D]`; write keys and values to the cache."""
        rows, columns = hidden.shape[:2]
        heads = self.qkv_proj(hidden).view(rows, columns, -1, self.head_dim)
        queries_and_keys, values = heads.split_with_sizes((self.num_heads + self.num_kv_heads, self.num_kv_heads), 2)
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = queries_and_keys.split_with_sizes((self.num_heads, self.num_kv_heads), 2)
            queries_and_keys = torch.cat([self.query_norm(queries), self.key_norm(keys)], 2)
        queries, keys, values = self.rotate_and_store(queries_and_keys, values, angles, cache)
        return self.kernel(queries.transpose(1, 2), keys, values, mask, self.scaling).flatten(2)


def residual_norm_fn(module: Any) -> ResidualNorm:
    """Return a function that adds a pending residual and normalises the sum, in one kernel where there is one."""
    if not isinstance(module, nn.Identity | nn.LayerNorm) and triton_ops.is_supported_weight(module.weight[None]):
        return lambda hidden, residual: triton_ops.residual_rms_norm(
            hidden, residual, module.weight, norm_epsilon(module)
        )
    norm = rms_norm_fn(module)

    def residual_norm(hidden: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        total = hidden if residual is None else hidden + residual
        return total, norm(total)

    return residual_norm


def gated_activation_fn(act: Any, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function `act(gate) * up` of gate and up concatenated (Shazeer 2020, arXiv 2002.05202)."""
    if isinstance(act, nn.SiLU | SiLUActivation) and triton_ops.is_supported_weight(weight):
        return triton_ops.silu_and_mul

    def gated_activation(gate_and_up: Tensor) -> Tensor:
        gate, up = gate_and_up.chunk(2, -1)
        output: Tensor = act(gate).mul_(up)
        return output

    return gated_activation


def rotary_kv_update_fn(weight: Tensor) -> Callable[[Tensor, Tensor, RotaryAngles, Any], tuple[Tensor, Tensor, Tensor]]:
    """Return a function that rotates queries and keys and writes keys and values to the cache.

    Args:
        weight (Tensor): A weight of the layer, whose device and dtype decide between the fused kernel and torch.

    Returns:
        A function of queries and keys `[rows, C, heads, D]` (keys last), values, rotary angles and the layer's cache,
        which returns the rotated queries and the views of keys and values that attention sees.
    """

    def fused(heads: Tensor, values: Tensor, angles: RotaryAngles, cache: Any) -> tuple[Tensor, Tensor, Tensor]:
        storage = cache.flat_storage(heads.transpose(1, 2)[:, : values.shape[2]], values.transpose(1, 2))
        return triton_ops.rotary_kv_update(heads, values, angles, storage), *cache.attention_views()

    def unfused(heads: Tensor, values: Tensor, angles: RotaryAngles, cache: Any) -> tuple[Tensor, Tensor, Tensor]:
        cos, sin = angles
        heads = torch.addcmul(heads * cos, heads.roll(heads.shape[3] // 2, -1), sin)
        queries, keys = heads.split_with_sizes((heads.shape[2] - values.shape[2], values.shape[2]), 2)
        return queries, *cache.update(keys.transpose(1, 2), values.transpose(1, 2))

    return fused if triton_ops.is_supported_weight(weight) else unfused


def signed_rotary_angles(cos: Tensor, sin: Tensor) -> RotaryAngles:
    """Return angles `[rows, C, D]` broadcast over heads, with the sines of the first half of a head negated."""
    first, second = sin.chunk(2, -1)
    return cos[:, :, None], torch.cat([-first, second], -1)[:, :, None]


def rms_norm_fn(module: Any) -> Norm:
    """Return an RMSNorm module (Zhang and Sennrich 2019, arXiv 1910.07467) as a function; other norms unchanged.

    torch has no CPU kernel for it and takes nine operations. But the concatenation of a tensor and its negative has
    mean 0, and its layer norm divides by exactly the root mean square.
    """
    if isinstance(module, nn.Identity | nn.LayerNorm):
        return module
    shape, eps = module.weight.shape, norm_epsilon(module)
    if module.weight.device.type != "cpu":
        return lambda hidden: F.rms_norm(hidden, shape, module.weight, eps)
    size, both = len(module.weight), (2 * len(module.weight),)
    return lambda hidden: torch.layer_norm(torch.cat([hidden, -hidden], -1), both, eps=eps)[..., :size] * module.weight


def norm_epsilon(module: Any) -> float:
    """Return the epsilon of an RMSNorm module."""
    eps: float = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    return eps


@torch.inference_mode()
def matches_backbone(backbone: Any) -> bool:
    """Return whether a small twin of `backbone` computes the same with `FusedDecoder` as with its own forward."""
    try:
        twin, config = small_twin(backbone)
        layers, positions = FusedDecoder(twin), cached_arange(TWIN_LENGTH, torch.device("cpu"))[None]
        # small inputs, so that the epsilon of norms matters
        generator = torch.Generator().manual_seed(0)
        inputs = 0.02 * torch.randn(1, TWIN_LENGTH, config.hidden_size, dtype=torch.double, generator=generator)
        is_causal = positions[0] <= positions[..., None]
        mask = attention.fold_gqa_mask(is_causal, torch.double, AttentionHeads.from_config(config))
        kwargs = {"position_ids": positions, "attention_mask": mask, "use_cache": False}
        reference = twin(inputs_embeds=inputs, **kwargs).last_hidden_state
        output = layers(inputs, positions, NoOpCache(config.num_hidden_layers), mask)
    except (TypeError, AttributeError, ValueError, RuntimeError, KeyError, IndexError) as error:
        if lack := system_error(error, f"{type(backbone).__name__} cannot be looked at"):
            raise lack from error
        return False  # settings that fit no small model, or parts of another kind
    return bool((reference - output).abs().max() < TOLERANCE * reference.abs().max())


def small_twin(backbone: Any) -> tuple[Any, Any]:
    """Return a randomly initialised narrow model of the same class and settings, and its configuration."""
    config = copy.deepcopy(backbone.config)
    heads = AttentionHeads.from_config(config)
    sizes = {"num_attention_heads": 2 * heads.group_size, "num_key_value_heads": 2, "head_dim": heads.head_dim}
    if getattr(config, "head_dim", None) is None:  # it follows from the others
        sizes["hidden_size"] = 2 * heads.group_size * heads.head_dim
    for name, value in (TWIN_SIZES | sizes | {"pad_token_id": 0}).items():  # some classes require a padding id
        setattr(config, name, value)
    config._attn_implementation = attention.SDPA
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.manual_seed(0)
        twin = type(backbone)(config).double().eval()
        for weight in twin.parameters():  # norms and biases too, which are initialised to ones and zeros
            nn.init.normal_(weight, std=0.3)
    return twin, config


class NoOpCache:
    """Stand-in for an empty KV cache that stores nothing."""

    rope_offsets, view_len = None, TWIN_LENGTH

    def __init__(self, layers: int) -> None:
        self.layers = [self] * layers

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys, values
