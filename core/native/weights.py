"""Weights in the panels that the C library reads, laid out once and held once."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.native.library import PANEL, Library, Matrix, Product, memory


class PanelWeight:
    """Weights of linear layers that read the same tensor, in panels of 32 outputs.

    A panel holds the weights of its outputs side by side for every input, in bf16 for every pair of inputs. Inputs and
    each layer's outputs are padded with zeros. A row's bits depend neither on the number of rows nor on threads.
    """

    def __init__(self, library: Library, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> None:
        """Lay out weights `[N, K]` and biases `[N]`, all fp32 or all bf16.

        Args:
            library (Library): Functions that compute the product.
            weights (Sequence[Tensor]): One per layer, with equal K.
            biases (Sequence[Tensor]): As many, or none.
        """
        self.library: Library = library
        self.dtype: torch.dtype = weights[0].dtype
        self.output_sizes: list[int] = [len(weight) for weight in weights]
        self.inputs: int = weights[0].shape[1]
        self.num_outputs: int = sum(self.output_sizes)
        self.num_weights: int = self.num_outputs * self.inputs
        self.pair = 2 if self.dtype == torch.bfloat16 else 1  # inputs whose weights lie next to each other
        padded = torch.cat([F.pad(weight, (0, -self.inputs % PANEL, 0, -len(weight) % PANEL)) for weight in weights])
        panels = padded.view(-1, PANEL, padded.shape[1] // self.pair, self.pair)
        self.panels: Tensor = panels.transpose(1, 2).contiguous()  # [panels, K / pair, PANEL, pair]
        self.bias: Tensor | None
        self.bias = torch.cat([F.pad(bias.float(), (0, -len(bias) % PANEL)) for bias in biases]) if biases else None
        first_columns = [0, *torch.tensor(self.output_sizes).cumsum(0).tolist()]
        columns = [
            (first + offset, min(PANEL, size - offset))
            for first, size in zip(first_columns, self.output_sizes, strict=False)
            for offset in range(0, size, PANEL)
        ]
        self.columns: Tensor
        self.used: Tensor
        self.columns, self.used = torch.tensor(columns, dtype=torch.int32).T.contiguous()
        self.matrix: Matrix = Matrix(
            self.panels.data_ptr(), None if self.bias is None else self.bias.data_ptr(), len(panels), padded.shape[1]
        )

    def unpacked(self) -> list[Tensor]:
        """Return the weights in their original layout, `[N, K]` each."""
        flat = self.panels.transpose(1, 2).reshape(len(self.panels) * PANEL, -1)[:, : self.inputs]
        padded = flat.split([size + -size % PANEL for size in self.output_sizes])
        return [part[:size] for part, size in zip(padded, self.output_sizes, strict=True)]

    def product(self, input: Tensor) -> Tensor:
        """Return the outputs of all layers, concatenated: `[..., K]` to `[..., sum of outputs]`."""
        input = input.to(self.dtype).contiguous()
        output = input.new_empty(*input.shape[:-1], self.num_outputs)
        if rows := input.shape[:-1].numel():
            arguments = Product(
                self.matrix, self.pair == 2, rows, self.inputs, self.num_outputs,
                self.library.num_threads(rows * self.num_weights),
                self.columns.data_ptr(), self.used.data_ptr(), input.data_ptr(), output.data_ptr(),
            )  # fmt: skip
            room = memory.address(self.library.product_bytes(byref(arguments)))
            self.library.run_product(byref(arguments), byref(self.library.openmp), room)
        return output
