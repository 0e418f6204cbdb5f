"""Weights as the C library reads them: laid out in panels once, or in place as torch keeps them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from ctypes import byref
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.native.library import PANEL, Library, Matrix, Product, memory


class NativeWeight(ABC):
    """Weights of linear layers that read the same tensor; subclasses set `matrix`.

    A row's bits depend neither on the number of rows nor on threads.

    Args:
        library (Library): Functions that compute the product.
        weights (Sequence[Tensor]): `[N, K]`, one per layer, with equal K; all fp32 or all bf16.
        biases (Sequence[Tensor]): `[N]`, as many, or none.
    """

    matrix: Matrix

    def __init__(self, library: Library, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> None:
        self.library: Library = library
        self.dtype: torch.dtype = weights[0].dtype
        self.output_sizes: list[int] = [len(weight) for weight in weights]
        self.inputs: int = weights[0].shape[1]
        self.num_outputs: int = sum(self.output_sizes)
        self.num_weights: int = self.num_outputs * self.inputs
        self.columns: Tensor
        self.used: Tensor
        self.columns, self.used = panel_columns(tuple(self.output_sizes))
        self.bias: Tensor | None
        self.bias = pad_biases(biases) if biases else None
        self.bias_address: int | None = None if self.bias is None else self.bias.data_ptr()

    @abstractmethod
    def unpacked(self) -> list[Tensor]:
        """Return the weights in their original layout, `[N, K]` each."""

    def product(self, input: Tensor) -> Tensor:
        """Return the outputs of all layers, concatenated: `[..., K]` to `[..., sum of outputs]`."""
        input = input.to(self.dtype).contiguous()
        output = input.new_empty(*input.shape[:-1], self.num_outputs)
        if rows := input.shape[:-1].numel():
            arguments = Product(
                self.matrix, self.dtype == torch.bfloat16, rows, self.inputs, self.num_outputs,
                self.library.num_threads(rows * self.num_weights),
                self.columns.data_ptr(), self.used.data_ptr(), input.data_ptr(), output.data_ptr(),
            )  # fmt: skip
            room = memory.address(self.library.product_bytes(byref(arguments)))
            self.library.run_product(byref(arguments), byref(self.library.openmp), room)
        return output


class PanelWeight(NativeWeight):
    """Weights that are laid out in panels of 32 outputs.

    A panel holds the weights of its outputs side by side for every input, in bf16 for every pair of inputs. Inputs and
    each layer's outputs are padded with zeros.
    """

    def __init__(self, library: Library, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> None:
        super().__init__(library, weights, biases)
        pair = 2 if self.dtype == torch.bfloat16 else 1  # inputs whose weights lie next to each other
        padded = torch.cat([F.pad(weight, (0, -self.inputs % PANEL, 0, -len(weight) % PANEL)) for weight in weights])
        panels = padded.view(-1, PANEL, padded.shape[1] // pair, pair)
        self.panels: Tensor = panels.transpose(1, 2).contiguous()  # [panels, K / pair, PANEL, pair]
        self.matrix: Matrix = Matrix(self.panels.data_ptr(), self.bias_address, len(panels), padded.shape[1])

    def unpacked(self) -> list[Tensor]:
        flat = self.panels.transpose(1, 2).reshape(len(self.panels) * PANEL, -1)[:, : self.inputs]
        padded = flat.split([size + -size % PANEL for size in self.output_sizes])
        return [part[:size] for part, size in zip(padded, self.output_sizes, strict=True)]


class InPlaceWeight(NativeWeight):
    """Weights that are read where torch keeps them, contiguous lines of inputs, and so never held twice.

    Biases are copied.
    """

    def __init__(self, library: Library, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> None:
        super().__init__(library, weights, biases)
        self.weights: list[Tensor]
        self.lines: Tensor = torch.empty(len(self.used), dtype=torch.long)  # [panels] addresses of their first lines
        self.matrix: Matrix = Matrix(
            None, self.bias_address, len(self.lines), self.inputs + -self.inputs % PANEL, self.lines.data_ptr(),
            self.used.data_ptr(), self.inputs,
        )  # fmt: skip
        self.point_to(weights, biases)

    def point_to(self, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> None:
        """Point to other weights and biases of the same shapes; whatever reads `matrix` then reads them."""
        self.weights = list(weights)
        panel_bytes = PANEL * self.inputs * self.dtype.itemsize
        first_lines = [
            torch.arange(weight.data_ptr(), weight.data_ptr() + weight.nbytes, panel_bytes) for weight in weights
        ]
        self.lines.copy_(torch.cat(first_lines))
        if self.bias is not None:
            self.bias.copy_(pad_biases(biases))

    def unpacked(self) -> list[Tensor]:
        return self.weights


def pad_biases(biases: Sequence[Tensor]) -> Tensor:
    """Return the biases of layers in fp32, each padded to whole panels with zeros."""
    return torch.cat([F.pad(bias.float(), (0, -len(bias) % PANEL)) for bias in biases])


@lru_cache(maxsize=1024)
def panel_columns(output_sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the first output's column and the number of outputs of every panel of layers, int32 `[panels]` each."""
    columns, used, first_column = [], [], 0
    with torch.inference_mode(False):
        for size in output_sizes:
            offsets = torch.arange(0, size, PANEL, dtype=torch.int32)
            columns.append(first_column + offsets)
            used.append((size - offsets).clamp(max=PANEL))
            first_column += size
        return torch.cat(columns), torch.cat(used)
