"""Llama-style decoder layers, computed directly rather than by their own forward, whose overhead is half a small pass.

    decoder = FusedDecoder.from_backbone(backbone)      # None if the model's own forward does anything else

Supported are pre-norm attention with rotary positions and a gated MLP, with biases and query/key norms if there are
any: Llama, Mistral, Qwen2, Qwen3 and models built like them. On CPUs a pass is one call of our C library
(`core/native`), if it is used; otherwise, and on GPUs, it is torch's operations and our kernels. Module names do not
tell what a class computes between its parts. Therefore a twin, with the same settings and as many layers but narrow
ones, is run both ways in float64, once per configuration.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from polydraft.core.batched_state import cached_arange
from polydraft.core.checks.system_errors import system_error
from polydraft.core.model import attention, triton_ops
from polydraft.core.model.attention import AttentionHeads
from polydraft.core.model.linear import PackedLinearGroup, fuse_linears, packed_group
from polydraft.core.native.decoder import (
    DecoderSizes,
    LayerParts,
    LayerWeights,
    NativeDecoder,
    activation_kind,
    norm_epsilon,
)
from polydraft.core.native.library import library
from polydraft.core.native.weights import NativeWeight

if TYPE_CHECKING:
    from polydraft.core.model.attention import Kernel

TWIN_SIZES = {"hidden_size": 48, "intermediate_size": 40, "vocab_size": 24}
TWIN_LENGTH = 9  # positions that a twin is compared on
NUM_GROUPS = 4  # packed groups of a layer, see `linear_groups`
BACKBONE_PARTS = ("embed_tokens", "layers", "norm", "rotary_emb")
TOLERANCE = 1e-5  # norms and angles are computed in float32 whatever the model's dtype
matches_by_config: dict[str, bool] = {}

Norm = Callable[[Tensor], Tensor]
# (residual stream, pending residual) -> (their sum, the norm of the sum)
ResidualNorm: TypeAlias = Callable[[Tensor, "Tensor | None"], tuple[Tensor, Tensor]]
RotaryAngles: TypeAlias = tuple[Tensor, Tensor]  # cosines and signed sines, [rows, T, 1, head_dim] each


class FusedDecoder:
    """Decoder that computes a backbone's embeddings, layers and final norm with fused projections and norms."""

    def __init__(self, backbone: Any) -> None:
        """Take over the weights of a transformers backbone.

        Raises:
            AttributeError: Its modules have other names than Llama's.
        """
        self.embed: Any = backbone.embed_tokens
        self.rotary_emb: Any = backbone.rotary_emb
        self.fused_layers: list[FusedDecoderLayer]
        self.fused_layers = [FusedDecoderLayer(layer, backbone.config) for layer in backbone.layers]
        self.norm: ResidualNorm = residual_norm_fn(backbone.norm)
        self.rotary_table: Tensor | None = None  # [slots, 2 * head_dim] cosines and signed sines
        self.native: NativeLayers | None = None

    @staticmethod
    def from_backbone(backbone: Any) -> FusedDecoder | None:
        """Return a decoder that computes the same as a transformers backbone, or None if it is not Llama-style.

        Whether it computes the same is tested on a small model of the same class, once per configuration.
        """
        if not all(hasattr(backbone, name) for name in BACKBONE_PARTS):
            return None
        try:
            decoder = FusedDecoder(backbone)
        except AttributeError:  # the layers' modules have other names
            return None
        config_key = type(backbone).__name__ + json.dumps(backbone.config.to_dict(), sort_keys=True, default=str)
        if config_key not in matches_by_config:
            matches_by_config[config_key] = matches_backbone(backbone)
        if not matches_by_config[config_key]:
            return None
        decoder.native = NativeLayers.from_backbone(backbone)
        return decoder

    def __call__(self, inputs: Tensor, positions: Tensor, cache: Any, mask: Tensor) -> Tensor:
        """Run all layers on T new positions per cache row, and write their keys and values to the cache.

        Args:
            inputs (Tensor): Ids `[rows, T]` or embeddings `[rows, T, D]`.
            positions (Tensor): `[rows, T]` rotary positions.
            cache (Any): A `KVCache` whose write slots are set.
            mask (Tensor): Result of `attention.fold_gqa_mask`.

        Returns:
            Tensor: Hidden states `[rows, T, D]` after the final norm.
        """
        hidden = self.embed(inputs) if inputs.ndim == 2 else inputs
        angles = self.rotary_angles(hidden, positions, cache)
        if self.native is not None:
            return self.native(hidden, angles, cache, mask)
        residual = None  # output of the previous layer's MLP, not yet added
        for layer, layer_cache in zip(self.fused_layers, cache.layers, strict=True):
            hidden, residual = layer(hidden, residual, angles, layer_cache, mask)
        return self.norm(hidden, residual)[1]  # the first element is the sum that was normalised

    def rotary_angles(self, hidden: Tensor, positions: Tensor, cache: Any) -> RotaryAngles:
        """Return cosines and sines, the first half of the sines negated, `[rows, T, 1, head_dim]` each.

        They are looked up in a table of all positions instead of being computed in every pass, where positions are
        known to be below the cache's `view_len`, the number of KV slots that attention reads.

        Args:
            hidden (Tensor): `[rows, T, D]`, hidden states of T new positions, whose dtype and device the angles get.
            positions (Tensor): `[rows, T]` rotary positions.
            cache (Any): A `KVCache`. If it has `rope_offsets` (rotary position minus slot) positions may exceed its
                slots, so the angles are computed.
        """
        if cache.rope_offsets is not None:
            return signed_rotary_angles(*self.rotary_emb(hidden, positions))
        table, dtype_and_device = self.rotary_table, (hidden.dtype, hidden.device)
        if table is None or len(table) < cache.view_len or (table.dtype, table.device) != dtype_and_device:
            slots = cached_arange(cache.view_len, hidden.device)  # all positions; `hidden` gives dtype and device only
            cos, sin = signed_rotary_angles(*self.rotary_emb(hidden[:1], slots[None]))
            self.rotary_table = table = torch.cat([cos[0], sin[0]], -1)[:, 0]  # [view_len, 2 * head_dim]
        cos, sin = F.embedding(positions, table)[:, :, None].chunk(2, -1)
        return cos, sin


class NativeLayers:
    """A backbone's layers and final norm as a decoder of the C library, rebuilt when trainable weights have changed."""

    def __init__(self, backbone: Any, groups: list[list[PackedLinearGroup]], sizes: DecoderSizes) -> None:
        """Take over the packed weights of a transformers backbone, `groups` of four by layer (see `linear_groups`)."""
        self.backbone: Any = backbone
        self.groups: list[list[PackedLinearGroup]] = groups
        self.sizes: DecoderSizes = sizes
        self.trainable: list[PackedLinearGroup]
        self.trainable = [group for layer in groups for group in layer if group.trainable_parameters]
        norms = [module for layer in backbone.layers for module in norm_modules(layer)] + [backbone.norm]
        parameters = (parameter for norm in norms if norm is not None for parameter in norm.parameters())
        self.trainable_norms: list[Any] = [parameter for parameter in parameters if parameter.requires_grad]
        self.decoder: NativeDecoder
        self.norm_versions: list[int]
        self.decoder, self.norm_versions = self.build(), self.versions()

    def versions(self) -> list[int]:
        """Return the version counters of all trainable parameters of norms; an update changes them."""
        return [parameter._version for parameter in self.trainable_norms]

    @staticmethod
    def from_backbone(backbone: Any) -> NativeLayers | None:
        """Return the layers of a Llama-style backbone, None if the C library is not used or lacks what they need."""
        activation = activation_kind(backbone.layers[0].mlp.act_fn) if len(backbone.layers) else None
        if library() is None or activation is None:
            return None
        groups, shapes = [], set()
        for layer in backbone.layers:
            packed = [group for group in linear_groups(layer) if group is not None]
            weights = [group.weight for group in packed if isinstance(group.weight, NativeWeight)]
            if len(weights) < NUM_GROUPS:
                return None
            groups.append(packed)
            shapes.add(tuple((weight.output_sizes[0], weight.num_outputs, weight.inputs) for weight in weights))
        if len(shapes) > 1:  # the C library reads sizes once for all layers
            return None
        config, heads, first = backbone.config, AttentionHeads.from_config(backbone.config), backbone.layers[0]
        sizes = DecoderSizes(
            first.mlp.gate_proj.in_features, config.num_attention_heads, config.num_attention_heads // heads.group_size,
            heads.head_dim, getattr(first.self_attn, "scaling", None) or heads.head_dim**-0.5, activation,
        )  # fmt: skip
        return NativeLayers(backbone, groups, sizes)

    def refresh_norms(self) -> None:
        """Read the present weights of norms."""
        self.decoder.refresh_norms()

    def build(self) -> NativeDecoder:
        """Return the decoder with the present weights."""
        parts = []
        for layer, groups in zip(self.backbone.layers, self.groups, strict=True):
            weights = LayerWeights(*(group.current_weight() for group in groups))  # type: ignore[arg-type]
            parts.append(LayerParts(weights, *norm_modules(layer)))
        return NativeDecoder(parts[0].weights.qkv.library, self.sizes, parts, self.backbone.norm)

    def __call__(self, hidden: Tensor, angles: RotaryAngles, cache: Any, mask: Tensor) -> Tensor:
        """Run all layers and the final norm; the arguments are those of `FusedDecoderLayer`."""
        if any(group.is_stale() for group in self.trainable) or self.norm_versions != self.versions():
            self.decoder, self.norm_versions = self.build(), self.versions()
        cosines, sines = (values[:, :, 0] for values in angles)
        return self.decoder(hidden, (cosines, sines), cache, mask)


def norm_modules(layer: Any) -> tuple[Any, Any, Any, Any]:
    """Return the norms of a decoder layer: before attention, before the MLP, of queries and of keys; None if absent."""
    attn = layer.self_attn
    query_norm, key_norm = getattr(attn, "q_norm", None), getattr(attn, "k_norm", None)
    return layer.input_layernorm, layer.post_attention_layernorm, query_norm, key_norm


def linear_groups(layer: Any) -> list[PackedLinearGroup | None]:
    """Return the packed linear layers of a decoder layer: Q, K and V; output; gate and up; down. None: not packed."""
    attn, mlp = layer.self_attn, layer.mlp
    members = [[attn.q_proj, attn.k_proj, attn.v_proj], [attn.o_proj], [mlp.gate_proj, mlp.up_proj], [mlp.down_proj]]
    return [packed_group(group) for group in members]


class FusedDecoderLayer:
    """Llama-style decoder layer with fused projections (Q, K and V; gate and up) and norms that add the residual."""

    def __init__(self, layer: Any, config: Any) -> None:
        """Take over the weights of a transformers decoder layer."""
        attn = layer.self_attn
        mlp = layer.mlp
        self.heads: AttentionHeads = AttentionHeads.from_config(config)
        self.head_dim: int = self.heads.head_dim
        self.num_kv_heads: Any = config.num_attention_heads // self.heads.group_size
        self.num_heads: Any = config.num_attention_heads
        self.scaling: Any | None = getattr(attn, "scaling", None)
        self.kernel: Kernel = attention.kernel_from_config(config)
        self.input_norm: ResidualNorm
        self.post_attention_norm: ResidualNorm
        self.input_norm, self.post_attention_norm = (
            residual_norm_fn(getattr(layer, name)) for name in ("input_layernorm", "post_attention_layernorm")
        )
        self.query_norm: Norm | None
        self.key_norm: Norm | None
        self.query_norm, self.key_norm = (
            rms_norm_fn(getattr(attn, name)) if hasattr(attn, name) else None for name in ("q_norm", "k_norm")
        )
        self.qkv_proj: Callable[[Tensor], Tensor] = fuse_linears([attn.q_proj, attn.k_proj, attn.v_proj])
        self.gate_up_proj: Callable[[Tensor], Tensor] = fuse_linears([mlp.gate_proj, mlp.up_proj])
        self.o_proj: Callable[[Tensor], Tensor] = fuse_linears([attn.o_proj])
        self.down_proj: Callable[[Tensor], Tensor] = fuse_linears([mlp.down_proj])
        self.activation: Callable[[Tensor], Tensor] = gated_activation_fn(mlp.act_fn, mlp.down_proj.weight)
        self.rotate_and_store: Callable[[Tensor, Tensor, RotaryAngles, Any], tuple[Tensor, Tensor, Tensor]]
        self.rotate_and_store = rotary_kv_update_fn(attn.o_proj.weight)

    def __call__(
        self, hidden: Tensor, residual: Tensor | None, angles: RotaryAngles, cache: Any, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run the layer. The next layer's norm adds the MLP output to the residual stream, in one kernel on GPUs.

        Args:
            hidden (Tensor): `[rows, T, D]`, residual stream of T positions before the layer, without `residual`.
            residual (Tensor | None): `[rows, T, D]`, the previous layer's MLP output, not yet added to `hidden`.
            angles (RotaryAngles): Result of `signed_rotary_angles`.
            cache (Any): A `KVCacheLayer`.
            mask (Tensor): Result of `attention.fold_gqa_mask`.

        Returns:
            The residual stream, and this layer's MLP output, which the next layer must add to it; `[rows, T, D]` each.
        """
        hidden, normed = self.input_norm(hidden, residual)
        attended = self.o_proj(self.attend(normed, angles, cache, mask))
        hidden, normed = self.post_attention_norm(hidden, attended)
        return hidden, self.down_proj(self.activation(self.gate_up_proj(normed)))

    def attend(self, hidden: Tensor, angles: RotaryAngles, cache: Any, mask: Tensor) -> Tensor:
        """Compute attention without the output projection, and write keys and values to the cache.

        Args:
            hidden (Tensor): `[rows, T, D]`, normalised hidden states of T positions.
            angles (RotaryAngles): Result of `signed_rotary_angles`.
            cache (Any): A `KVCacheLayer`.
            mask (Tensor): Result of `attention.fold_gqa_mask`.

        Returns:
            Tensor: `[rows, T, heads * head_dim]`.
        """
        rows, num_positions = hidden.shape[:2]
        qkv = self.qkv_proj(hidden).view(rows, num_positions, -1, self.head_dim)  # heads of Q, then K, then V
        queries_and_keys, values = qkv.split_with_sizes((self.num_heads + self.num_kv_heads, self.num_kv_heads), 2)
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = queries_and_keys.split_with_sizes((self.num_heads, self.num_kv_heads), 2)
            queries_and_keys = torch.cat([self.query_norm(queries), self.key_norm(keys)], 2)
        # keys and values are now all that attention reads, old and new: [rows, kv_heads, view_len, head_dim]
        queries, keys, values = self.rotate_and_store(queries_and_keys, values, angles, cache)
        return self.kernel(queries.transpose(1, 2), keys, values, mask, self.scaling).flatten(2)


def residual_norm_fn(module: Any) -> ResidualNorm:
    """Return a function that adds a residual and normalises the sum, in one kernel on GPUs.

    Args:
        module (Any): Norm module of a decoder layer.

    Returns:
        A function of the residual stream `[..., D]` and what is to be added to it (or None), which returns their sum
        and the norm of the sum, `[..., D]` each.
    """
    # any other module is an RMSNorm; `[None]` makes its weight [D] a matrix, which the check expects
    if not isinstance(module, nn.Identity | nn.LayerNorm) and triton_ops.is_supported_weight(module.weight[None]):
        return lambda hidden, residual: triton_ops.residual_rms_norm(
            hidden, residual, module.weight, norm_epsilon(module)
        )
    norm = rms_norm_fn(module)

    def residual_norm(hidden: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return `hidden + residual` and its norm."""
        total = hidden if residual is None else hidden + residual
        return total, norm(total)

    return residual_norm


def gated_activation_fn(act: Any, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the gated activation of an MLP: `[..., 2 * H]`, gate and up concatenated, to act(gate) * up `[..., H]`.

    H is the number of intermediate features (Shazeer 2020, arXiv 2002.05202).

    Args:
        act (Any): Activation function of the gate.
        weight (Tensor): A weight of the layer, whose device and dtype decide between the fused kernel and torch.
    """
    if isinstance(act, nn.SiLU | SiLUActivation) and triton_ops.is_supported_weight(weight):
        return triton_ops.silu_and_mul

    def gated_activation(gate_and_up: Tensor) -> Tensor:
        """Return `act(gate) * up`."""
        gate, up = gate_and_up.chunk(2, -1)
        output: Tensor = act(gate).mul_(up)
        return output

    return gated_activation


def rotary_kv_update_fn(weight: Tensor) -> Callable[[Tensor, Tensor, RotaryAngles, Any], tuple[Tensor, Tensor, Tensor]]:
    """Return a function that rotates queries and keys and writes keys and values to the KV cache.

    Shapes: `rows` are rows of the KV cache, T is the number of new positions per row, and `view_len` is the number of
    KV slots per row that attention reads, old and new ones.

    Args:
        weight (Tensor): A weight of the layer, whose device and dtype decide between the fused kernel and torch.

    Returns:
        A function of four arguments: queries and keys `[rows, T, heads + kv_heads, head_dim]` (query heads first),
        values `[rows, T, kv_heads, head_dim]`, the result of `signed_rotary_angles`, and the layer's `KVCacheLayer`,
        whose write slots are set. It returns the rotated queries `[rows, T, heads, head_dim]`, and the keys and the
        values that attention reads, `[rows, kv_heads, view_len, head_dim]` each.
    """

    def fused(
        queries_and_keys: Tensor, values: Tensor, angles: RotaryAngles, cache: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotate and store with one Triton kernel."""
        # `flat_storage` takes from the keys only shape, dtype and device, and the rotated keys do not exist yet.
        # Therefore it gets any kv_heads of the heads, [rows, kv_heads, T, head_dim]; their values are not read.
        keys_like = queries_and_keys.transpose(1, 2)[:, : values.shape[2]]
        storage = cache.flat_storage(keys_like, values.transpose(1, 2))
        # the kernel writes new keys and values to `storage`; `attention_views` then returns views of it
        return triton_ops.rotary_kv_update(queries_and_keys, values, angles, storage), *cache.attention_views()

    def unfused(
        queries_and_keys: Tensor, values: Tensor, angles: RotaryAngles, cache: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotate and store with torch operations."""
        # the first half of the sines is negated, so the rotation is cos * x + sin * (x with its halves swapped)
        cos, sin = angles
        swapped = queries_and_keys.roll(queries_and_keys.shape[3] // 2, -1)  # a roll by head_dim / 2 swaps the halves
        rotated = torch.addcmul(queries_and_keys * cos, swapped, sin)
        kv_heads = values.shape[2]
        queries, keys = rotated.split_with_sizes((rotated.shape[2] - kv_heads, kv_heads), 2)
        # `update` takes [rows, kv_heads, T, head_dim] and returns the keys and values that attention reads
        return queries, *cache.update(keys.transpose(1, 2), values.transpose(1, 2))

    return fused if triton_ops.is_supported_weight(weight) else unfused


def signed_rotary_angles(cos: Tensor, sin: Tensor) -> RotaryAngles:
    """Return cosines and sines with the first half of the sines negated, `[rows, T, 1, head_dim]` each.

    Rotating x is then cos * x + sin * (x with its halves swapped), without negating half of x.

    Args:
        cos (Tensor): `[rows, T, head_dim]`, cosines for T positions.
        sin (Tensor): `[rows, T, head_dim]`.
    """
    first_half, second_half = sin.chunk(2, -1)
    return cos[:, :, None], torch.cat([-first_half, second_half], -1)[:, :, None]


def rms_norm_fn(module: Any) -> Norm:
    """Return an RMSNorm module as a faster function `[..., D]` to `[..., D]`; other norm modules unchanged.

    Zhang and Sennrich 2019, arXiv 1910.07467. torch has no CPU kernel for it and takes nine operations. But the
    concatenation of a vector and its negative has mean 0, and its layer norm divides by exactly the root mean square.
    """
    if isinstance(module, nn.Identity | nn.LayerNorm):
        return module
    shape, eps = module.weight.shape, norm_epsilon(module)
    if module.weight.device.type != "cpu":  # there torch has a kernel
        return lambda hidden: F.rms_norm(hidden, shape, module.weight, eps)
    size, doubled_shape = len(module.weight), (2 * len(module.weight),)

    def rms_norm(hidden: Tensor) -> Tensor:
        """Return the RMS norm over the last dimension."""
        return torch.layer_norm(torch.cat([hidden, -hidden], -1), doubled_shape, eps=eps)[..., :size] * module.weight

    return rms_norm


@torch.inference_mode()
def matches_backbone(backbone: Any) -> bool:
    """Return whether `FusedDecoder` computes the same as the forward of a backbone's class.

    Both are run in float64 on a twin: a small, randomly initialised model of the same class and settings.
    """
    try:
        twin, config = small_twin(backbone)
        layers, positions = FusedDecoder(twin), cached_arange(TWIN_LENGTH, torch.device("cpu"))[None]
        # small inputs, so that the epsilon of norms matters
        generator = torch.Generator().manual_seed(0)
        inputs = 0.02 * torch.randn(1, TWIN_LENGTH, config.hidden_size, dtype=torch.double, generator=generator)
        is_causal = positions[0] <= positions[..., None]  # [1, T, T] bool: key position <= query position
        mask = attention.fold_gqa_mask(is_causal, torch.double, AttentionHeads.from_config(config))
        kwargs = {"position_ids": positions, "attention_mask": mask, "use_cache": False}
        reference = twin(inputs_embeds=inputs, **kwargs).last_hidden_state
        output = layers(inputs, positions, NoOpCache(config.num_hidden_layers), mask)
    except (TypeError, AttributeError, ValueError, RuntimeError, KeyError, IndexError) as error:
        if environment_error := system_error(error, f"{type(backbone).__name__} cannot be looked at"):
            raise environment_error from error
        return False  # settings that fit no small model, or modules of another type
    return bool((reference - output).abs().max() < TOLERANCE * reference.abs().max())


def small_twin(backbone: Any) -> tuple[Any, Any]:
    """Return a narrow model of the class and settings of `backbone` with random float64 weights, and its config."""
    config = copy.deepcopy(backbone.config)
    heads = AttentionHeads.from_config(config)
    # group size and head size are kept, since attention depends on them; two key/value heads show if heads are mixed up
    sizes = {"num_attention_heads": 2 * heads.group_size, "num_key_value_heads": 2, "head_dim": heads.head_dim}
    if getattr(config, "head_dim", None) is None:  # it follows from the others
        sizes["hidden_size"] = 2 * heads.group_size * heads.head_dim
    for name, value in (TWIN_SIZES | sizes | {"pad_token_id": 0}).items():  # some classes require a padding id
        setattr(config, name, value)
    config._attn_implementation = attention.SDPA
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.manual_seed(0)
        twin = type(backbone)(config).double().eval()
        # norms and biases too, which are initialised to ones and zeros and would hide whether they are applied
        for weight in twin.parameters():
            nn.init.normal_(weight, std=0.3)
    return twin, config


class NoOpCache:
    """Stand-in for a `KVCache` and its layers that stores nothing, for one pass over a whole sequence."""

    rope_offsets: None = None
    view_len: int = TWIN_LENGTH

    def __init__(self, num_layers: int) -> None:
        """Stand in for a cache of `num_layers` layers."""
        self.layers: list[NoOpCache] = [self] * num_layers

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of this pass, which are all that attention reads."""
        return keys, values
