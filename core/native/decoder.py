"""Passes of a Llama-style decoder in one call of the C library.

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
from transformers.activations import GELUTanh, NewGELUActivation, SiLUActivation

from polydraft.core.native.library import Decoder, Layer, Library, Norm, Pass, memory
from polydraft.core.native.weights import PanelWeight

NO_NORM, RMS_NORM, LAYER_NORM = range(3)
SILU, GELU_TANH = range(2)


@dataclass(frozen=True)
class LayerWeights:
    """Weights of a decoder layer, by what reads them."""

    qkv: PanelWeight
    output: PanelWeight
    gate_up: PanelWeight
    down: PanelWeight

    def all(self) -> list[PanelWeight]:
        """Return all four."""
        return [self.qkv, self.output, self.gate_up, self.down]


@dataclass(frozen=True)
class LayerParts:
    """Weights and norms of a decoder layer."""

    weights: LayerWeights
    input_norm: Any
    mlp_norm: Any
    query_norm: Any  # None if the layer has none, and so for the next
    key_norm: Any


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes that all layers of a decoder share."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    scaling: float
    activation: int


class NativeDecoder:
    """A decoder whose passes are calls of the C library.

    Args:
        library (Library): Functions for this processor.
        sizes (DecoderSizes): Sizes of all layers.
        layers (Sequence[LayerParts]): The layers.
        final_norm (Any): Norm module after them.
    """

    def __init__(self, library: Library, sizes: DecoderSizes, layers: Sequence[LayerParts], final_norm: Any) -> None:
        self.library, self.sizes, self.layers = library, sizes, layers
        self.dtype = layers[0].weights.qkv.dtype
        self.num_weights = sum(weight.num_weights for layer in layers for weight in layer.weights.all())
        self.kept: list[Tensor] = []  # what the structures point to
        self.structures = (Layer * len(layers))(*map(self.layer_structure, layers))
        self.decoder = Decoder(
            len(layers), sizes.hidden, sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.intermediate,
            self.dtype == torch.bfloat16, sizes.activation, sizes.scaling, self.structures,
            self.norm_structure(final_norm),
        )  # fmt: skip

    def layer_structure(self, layer: LayerParts) -> Layer:
        """Return a layer as the C library reads it."""
        norms = (layer.input_norm, layer.mlp_norm, layer.query_norm, layer.key_norm)
        return Layer(*map(self.norm_structure, norms), *(weight.matrix for weight in layer.weights.all()))

    def norm_structure(self, module: Any) -> Norm:
        """Return a norm as the C library reads it."""
        if module is None or isinstance(module, nn.Identity):
            return Norm(NO_NORM, 0.0, None, None)
        kind = LAYER_NORM if isinstance(module, nn.LayerNorm) else RMS_NORM
        return Norm(kind, norm_epsilon(module), self.keep(module.weight), self.keep(getattr(module, "bias", None)))

    def keep(self, values: Tensor | None) -> int | None:
        """Return the address of an fp32 copy that lives as long as the decoder."""
        if values is None:
            return None
        self.kept.append(values.detach().float().contiguous())
        return self.kept[-1].data_ptr()

    def __call__(self, inputs: Tensor, cosines: Tensor, sines: Tensor, cache: Any, mask: Tensor) -> Tensor:
        """Run all layers on T new positions per cache row, and write their keys and values to the cache.

        Args:
            inputs (Tensor): Embeddings `[rows, T, D]`.
            cosines (Tensor): `[rows, T, head_dim]`.
            sines (Tensor): `[rows, T, head_dim]`, the first half negated.
            cache (Any): A `KVCache` whose write slots are set.
            mask (Tensor): Result of `attention.fold_gqa_mask`; its first T lines are read.

        Returns:
            Tensor: Hidden states `[rows, T, D]` after the final norm.
        """
        rows, num_positions = inputs.shape[:2]
        inputs = inputs.to(self.dtype).contiguous()
        outputs = torch.empty_like(inputs)
        if not outputs.numel():
            return outputs
        angles = [values.float().expand(rows, -1, -1).contiguous() for values in (cosines, sines)]
        slots = cache.write_slots.contiguous()
        mask = mask.expand(rows, -1, -1, -1)
        keys, values = cache.storage_addresses(self.sizes.kv_heads, self.sizes.head_dim, self.dtype)
        arguments = Pass(
            rows, num_positions, cache.write_rows.start, cache.view_len, cache.num_slots,
            self.library.num_threads(rows * num_positions * self.num_weights),
            inputs.data_ptr(), *(part.data_ptr() for part in angles), mask.data_ptr(), mask.stride(0), mask.stride(2),
            slots.data_ptr(), ctypes.addressof(keys), ctypes.addressof(values), outputs.data_ptr(),
        )  # fmt: skip
        room = memory.address(self.library.pass_bytes(byref(self.decoder), byref(arguments)))
        if self.library.run_pass(byref(self.decoder), byref(arguments), byref(self.library.openmp), room):
            raise AssertionError(f"a pass would write to a slot that a row of {cache.num_slots} does not have")
        return outputs


def activation_kind(function: Any) -> int | None:
    """Return the number of an MLP's activation function in the C library, None if it has none like it."""
    if isinstance(function, nn.SiLU | SiLUActivation):
        return SILU
    return GELU_TANH if isinstance(function, GELUTanh | NewGELUActivation) else None


def norm_epsilon(module: Any) -> float:
    """Return the epsilon of a norm module."""
    eps: float = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    return eps
