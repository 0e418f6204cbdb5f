"""Passes of a pre-norm decoder in one call of the C library: Llama's kind, or one that also attends to fixed keys.

The residual stream and all sums stay in fp32; keys, values and outputs are rounded to the model's dtype. Last bits
differ from torch's path, which rounds after every operation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation, GELUTanh, NewGELUActivation, SiLUActivation

from polydraft.core.native.library import Decoder, Layer, Library, Matrix, Norm, Pass, memory
from polydraft.core.native.weights import NativeWeight

NO_NORM, RMS_NORM, LAYER_NORM = range(3)
SILU, GELU_TANH, GELU = range(3)


@dataclass(frozen=True)
class LayerWeights:
    """Weights of a decoder layer, by what reads them."""

    qkv: NativeWeight
    output: NativeWeight
    up: NativeWeight  # of a gated MLP the gates, then what they are multiplied with
    down: NativeWeight
    cross_query: NativeWeight | None = None  # of attention to fixed keys, if there is any
    cross_output: NativeWeight | None = None

    def common_weights(self) -> list[NativeWeight]:
        """Return those that every decoder has."""
        return [self.qkv, self.output, self.up, self.down]

    def cross(self) -> list[NativeWeight]:
        """Return those of attention to fixed keys."""
        return [weight for weight in (self.cross_query, self.cross_output) if weight is not None]

    def count(self) -> int:
        """Return the number of weights."""
        return sum(weight.num_weights for weight in self.common_weights() + self.cross())


@dataclass(frozen=True)
class LayerParts:
    """Weights and norms of a decoder layer."""

    weights: LayerWeights
    input_norm: Any
    mlp_norm: Any
    query_norm: Any  # None if the layer has none, and so for the next
    key_norm: Any
    cross_norm: Any = None  # before attention to fixed keys


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes that all layers of a decoder share."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    scaling: float
    activation: int
    is_gated: bool = True  # whether the MLP multiplies its activations


class NativeDecoder:
    """A decoder whose passes are calls of the C library.

    Args:
        library (Library): Functions for this processor.
        sizes (DecoderSizes): Sizes of all layers.
        layers (Sequence[LayerParts]): The layers.
        final_norm (Any): Norm module after them.
    """

    def __init__(self, library: Library, sizes: DecoderSizes, layers: Sequence[LayerParts], final_norm: Any) -> None:
        self.library: Library = library
        self.sizes: DecoderSizes = sizes
        self.layers: Sequence[LayerParts] = layers
        self.dtype: torch.dtype = layers[0].weights.qkv.dtype
        self.num_weights: int = sum(layer.weights.count() for layer in layers)
        self.norm_copies: list[tuple[nn.Module, str, Tensor]] = []  # module, parameter, and what structures point to
        self.structures: ctypes.Array[Layer] = (Layer * len(layers))(*map(self.layer_structure, layers))
        self.decoder: Decoder = Decoder(
            len(layers), sizes.hidden, sizes.heads, sizes.kv_heads, sizes.head_dim,
            self.dtype == torch.bfloat16, sizes.activation, sizes.is_gated, sizes.scaling, self.structures,
            self.norm_structure(final_norm),
        )  # fmt: skip

    def layer_structure(self, layer: LayerParts) -> Layer:
        """Return a layer as the C library reads it."""
        norms = (layer.input_norm, layer.mlp_norm, layer.query_norm, layer.key_norm)
        cross = [weight.matrix for weight in layer.weights.cross()] or [Matrix(), Matrix()]
        return Layer(
            *map(self.norm_structure, norms), *(weight.matrix for weight in layer.weights.common_weights()),
            self.norm_structure(layer.cross_norm), *cross,
        )  # fmt: skip

    def norm_structure(self, module: Any) -> Norm:
        """Return a norm as the C library reads it."""
        if module is None or isinstance(module, nn.Identity):
            return Norm(NO_NORM, 0.0, None, None)
        kind = LAYER_NORM if isinstance(module, nn.LayerNorm) else RMS_NORM
        return Norm(kind, norm_epsilon(module), self.copy_of(module, "weight"), self.copy_of(module, "bias"))

    def copy_of(self, module: Any, name: str) -> int | None:
        """Return the address of an fp32 copy of a parameter, which lives as long as the decoder; None without one."""
        if getattr(module, name, None) is None:
            return None
        copy = getattr(module, name).detach().to(torch.float32, copy=True).contiguous()
        self.norm_copies.append((module, name, copy))
        return copy.data_ptr()

    def refresh_norms(self) -> None:
        """Copy the present weights and biases of all norms, for passes to come."""
        for module, name, copy in self.norm_copies:
            copy.copy_(getattr(module, name).detach())

    def __call__(
        self, inputs: Tensor, angles: tuple[Tensor, Tensor] | None, cache: Any, mask: Tensor, fixed: Any = None
    ) -> Tensor:
        """Run all layers on T new positions per cache row, and write their keys and values to the cache.

        Args:
            inputs (Tensor): Embeddings `[rows, T, D]`.
            angles (tuple[Tensor, Tensor] | None): Cosines and sines, the first half of the sines negated,
                `[rows, T, head_dim]` each; None: queries and keys are not rotated.
            cache (Any): A `KVCache` whose write slots are set.
            mask (Tensor): Result of `attention.fold_gqa_mask`; its first T lines are read.
            fixed (Any): A `KVCache` of the same rows, whose `requested_slots` all positions also attend to; None:
                there is none.

        Returns:
            Tensor: Hidden states `[rows, T, D]` after the final norm.
        """
        rows, num_positions = inputs.shape[:2]
        inputs = inputs.to(self.dtype).contiguous()
        outputs = torch.empty_like(inputs)
        if not outputs.numel():
            return outputs
        rotation = [values.float().expand(rows, -1, -1).contiguous() for values in angles or ()]
        angle_addresses = [part.data_ptr() for part in rotation] if rotation else [None, None]
        slots = cache.write_slots.contiguous()
        mask = mask.expand(rows, -1, -1, -1)
        keys, values = cache.storage_addresses(self.sizes.kv_heads, self.sizes.head_dim, self.dtype)
        fixed_keys: tuple[Any, ...] = (0, 0, None, None)
        if fixed is not None:
            addresses = fixed.storage_addresses(self.sizes.kv_heads, self.sizes.head_dim, self.dtype)
            fixed_keys = fixed.requested_slots, fixed.num_slots, *map(ctypes.addressof, addresses)
        arguments = Pass(
            rows, num_positions, cache.write_rows.start, cache.view_len, cache.num_slots,
            self.library.num_threads(rows * num_positions * self.num_weights),
            inputs.data_ptr(), *angle_addresses, mask.data_ptr(), mask.stride(0), mask.stride(2),
            slots.data_ptr(), ctypes.addressof(keys), ctypes.addressof(values), outputs.data_ptr(), *fixed_keys,
        )  # fmt: skip
        room = memory.address(self.library.pass_bytes(byref(self.decoder), byref(arguments)))
        if self.library.run_pass(byref(self.decoder), byref(arguments), byref(self.library.openmp), room):
            raise AssertionError(f"a pass would write to a slot that a row of {cache.num_slots} does not have")
        return outputs


def activation_kind(function: Any) -> int | None:
    """Return the number of an MLP's activation function in the C library, None if it has none like it."""
    if isinstance(function, nn.SiLU | SiLUActivation):
        return SILU
    if isinstance(function, nn.GELU | GELUActivation) and getattr(function, "approximate", "none") == "none":
        return GELU
    return GELU_TANH if isinstance(function, GELUTanh | NewGELUActivation) else None


def norm_epsilon(module: Any) -> float:
    """Return the epsilon of a norm module."""
    eps: float = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    return eps
