"""Weights in oneDNN's packed layout, for CPUs where our own C library is not used.

oneDNN's products sum in an order that depends on the number of rows: the last bits of a token's logits would change
with the batch and the draft around it, and would differ from plain decoding at the first near tie. Therefore the range
of row counts that are summed in the same order is measured on the machine at hand, once per shape; larger products are
cut into blocks of that size, and smaller ones are padded. Where oneDNN does not support bf16 (AVX2 alone) weights are
packed in fp32, and results rounded to bf16.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PACK_BLOCK = 32  # input rows that the packed layout is optimised for (one AMX tile pair)
PROBED_ROW_COUNTS = (1, 2, 3, 5, 8, 16, 17, 32, 33, 64, 256)  # few, since oneDNN keeps half a megabyte for each
MAX_PROBED_OUTPUTS = 1 << 13  # output features of a probe


class OneDnnWeight:
    """Weights of linear layers that read the same tensor, concatenated and packed."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> None:
        """Pack weights `[N, K]` and biases `[N]`, all fp32 or all bf16.

        Args:
            weights (Sequence[Tensor]): One per layer, with equal K.
            biases (Sequence[Tensor]): As many, or none.
        """
        self.dtype: torch.dtype = weights[0].dtype
        self.compute_dtype: torch.dtype = packed_dtype(weights[0].dtype)
        self.output_sizes: list[int] = [len(weight) for weight in weights]
        weight = torch.cat(list(weights)).to(self.compute_dtype)
        self.bias: Tensor | None = torch.cat(list(biases)).to(self.compute_dtype) if biases else None
        self.packed: Any = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_BLOCK)
        self.min_rows: int
        self.max_rows: int
        self.min_rows, self.max_rows = batch_invariant_rows(*weight.shape, weight.dtype)

    def unpacked(self) -> list[Tensor]:
        """Return the weights in their original layout and dtype, `[N, K]` each."""
        dense: Tensor = self.packed.to_dense()
        return [part.to(self.dtype) for part in dense.split(self.output_sizes)]

    def product(self, input: Tensor) -> Tensor:
        """Return the outputs of all layers, concatenated: `[..., K]` to `[..., sum of outputs]`.

        They are computed in blocks of `min_rows` to `max_rows` rows, for which the kernel sums in the same order, so
        that a row's bits do not depend on the number of rows.
        """
        rows = input.shape[:-1].numel()
        if self.min_rows <= rows <= self.max_rows:
            return self.block_product(input)
        flat = input.reshape(rows, input.shape[-1])
        if rows < self.min_rows:
            output = self.block_product(F.pad(flat, (0, 0, 0, self.min_rows - rows)))[:rows]
        else:
            # as few blocks as possible, of nearly equal size, since a small remainder might be below `min_rows`
            num_blocks = -(-rows // self.max_rows)
            output = torch.cat([self.block_product(block) for block in flat.tensor_split(num_blocks)])
        return output.view(*input.shape[:-1], output.shape[-1])

    def block_product(self, input: Tensor) -> Tensor:
        """Return the outputs of all layers for `[..., K]` inputs, as many rows as the batch-invariant range allows."""
        if self.compute_dtype == self.dtype == input.dtype:
            return packed_linear(input, self.packed, self.bias)
        return packed_linear(input.to(self.compute_dtype), self.packed, self.bias).to(self.dtype)


def packed_linear(rows: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `rows @ weight.T + bias`: rows `[..., K]`, packed weight `[N, K]`, bias `[N]`, result `[..., N]`."""
    return torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")


def packed_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which weights of `dtype` are packed and multiplied on this machine."""
    return dtype if dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


@lru_cache(maxsize=256)
def batch_invariant_rows(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[int, int]:
    """Measure for which numbers of rows a packed product gives every row the same bits.

    Random rows are multiplied by a random weight, in products of each number of rows in PROBED_ROW_COUNTS, and compared
    with products of 8 rows. The sums nearly cancel: what is left of them is rounding error, which shows any change in
    the order of summation.

    Args:
        outputs (int): Output features of the weight.
        inputs (int): Input features of the weight.
        dtype (torch.dtype): Type in which the product is computed.

    Returns:
        Smallest and largest such number of rows.
    """
    generator = torch.Generator().manual_seed(0)
    # fewer outputs than the weight has are enough, and bound the time
    outputs, order = min(outputs, MAX_PROBED_OUTPUTS), torch.randperm(inputs, generator=generator)
    # half of the inputs are random, rounded up; the other half repeats them
    weight, x = (
        torch.randn(size, inputs - inputs // 2, generator=generator) for size in (outputs, PROBED_ROW_COUNTS[-1])
    )
    # every product x * weight occurs with both signs, in a random order
    weight = torch.cat([weight, -weight], 1)[:, :inputs][:, order].to(dtype).contiguous()
    x = torch.cat([x, x], 1)[:, :inputs][:, order].to(dtype).contiguous()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_BLOCK)
    reference = torch.cat([packed_linear(block, packed) for block in x.split(8)])  # a typical draft has 8 nodes
    different = [
        count for count in PROBED_ROW_COUNTS if not torch.equal(packed_linear(x[:count], packed), reference[:count])
    ]
    # the range around 8 rows in which no probed count differs: above the largest smaller one that does, and up to the
    # largest probed count below the smallest larger one that does
    min_rows = 1 + max((count for count in different if count < 8), default=0)
    limit = min((count for count in different if count > 8), default=PROBED_ROW_COUNTS[-1] + 1)
    return min_rows, max(count for count in PROBED_ROW_COUNTS if count < limit)
