"""Sweeps of local refinement in one call of the C library."""

from __future__ import annotations

from ctypes import Structure, byref, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polydraft.core.native.library import Matrix, memory
from polydraft.core.native.weights import NativeWeight

if TYPE_CHECKING:
    from polydraft.core.native.library import Library


class RefinementStructure(Structure):
    """Arguments of the sweeps of a window."""

    _fields_ = [
        *((name, c_int32) for name in (
            "rows", "window", "vocab", "inner", "neighbours", "num_recent", "sweeps", "is_bf16", "num_threads",
        )),
        ("mix", Matrix), ("lm_head", Matrix), ("begins", c_void_p), ("tables", c_void_p), ("table_rows", c_int64),
        ("table_index", c_void_p), ("num_ids", c_int64), ("recent", c_void_p), ("neighbour_index", c_void_p),
        ("exists", c_void_p), ("weights", c_void_p), ("old_features", c_void_p), ("logits", c_void_p),
        ("margins", c_void_p), ("noise", c_void_p), ("noise_scale", c_float), ("temperatures", c_void_p),
        ("is_refined", c_void_p), ("ids", c_void_p), ("features", c_void_p),
    ]  # fmt: skip


@dataclass(frozen=True)
class WindowToRefine:
    """Guesses of W positions in B rows, their distributions, and where their K neighbours are."""

    ids: Tensor  # [B, W] guesses
    recent_tokens: Tensor  # [B, offset] tokens before the window
    neighbour_mask: Tensor  # [B, W + 1, K] bool, which neighbours exist
    weights: Tensor  # [B, W] factor of the features
    old_features: Tensor  # [B, W, H] features that are subtracted
    logits: Tensor  # [B, W, V] float32, to which the head of the difference is added
    margins: Tensor  # [B, W, 1] lowest minus highest logit that filters keep
    noise: Tensor | None  # [B, W, V] Gumbel noise; None if all rows are greedy
    temperatures: Tensor  # [B]
    is_refined: Tensor  # [B, W] bool, which guesses may change


class NativeRefinement:
    """Network of local refinement whose sweeps are calls of the C library.

    Args:
        mix (NativeWeight): W_1, with bias.
        lm_head (NativeWeight): The network's last matrix and the LM head as one, `[V, H]`.
        begins (Tensor): b, `[H]`.
        tables (Tensor): One table per neighbour after the other, `[K * rows, H]`; the last row of each is zero.
        table_index (Tensor): Row of every id in a table.
        neighbour_index (Tensor): `[W + 1, K]`, place of every neighbour among the recent tokens and the guesses.
    """

    def __init__(
        self, mix: NativeWeight, lm_head: NativeWeight, begins: Tensor, tables: Tensor, table_index: Tensor,
        neighbour_index: Tensor,
    ) -> None:  # fmt: skip
        self.mix: NativeWeight = mix
        self.lm_head: NativeWeight = lm_head
        self.library: Library = mix.library
        self.begins: Tensor = begins.detach().float().contiguous()
        self.tables: Tensor = tables.to(mix.dtype).contiguous()
        self.table_index: Tensor = table_index.contiguous()
        self.neighbour_index: Tensor = neighbour_index.contiguous()

    def refine(self, window: WindowToRefine, sweeps: int, noise_scale: float) -> tuple[Tensor, Tensor]:
        """Refine all guesses `sweeps` times.

        Args:
            window (WindowToRefine): The window.
            sweeps (int): How often.
            noise_scale (float): Factor of the noise.

        Returns:
            The guesses `[B, W]`, and the features `[B, W + 1, H]` at them and behind them.
        """
        (rows, width), neighbours = window.ids.shape, self.neighbour_index.shape[1]
        ids = window.ids.clone(memory_format=torch.contiguous_format)
        features = torch.empty(rows, width + 1, self.mix.inputs, dtype=self.mix.dtype)
        floats = [
            values.float().contiguous()
            for values in (window.weights, window.old_features, window.logits, window.margins, window.temperatures)
        ]
        weights, old_features, logits, margins, temperatures = (values.data_ptr() for values in floats)
        noise = None if window.noise is None else window.noise.float().contiguous()
        recent, exists = window.recent_tokens.contiguous(), window.neighbour_mask.contiguous()
        is_refined = window.is_refined.contiguous()
        arguments = RefinementStructure(
            rows, width, self.lm_head.num_outputs, self.mix.inputs, neighbours, recent.shape[1], sweeps,
            self.mix.dtype == torch.bfloat16, self.library.num_threads(rows * width * self.lm_head.num_weights),
            self.mix.matrix, self.lm_head.matrix, self.begins.data_ptr(), self.tables.data_ptr(),
            len(self.tables) // neighbours, self.table_index.data_ptr(), len(self.table_index), recent.data_ptr(),
            self.neighbour_index.data_ptr(), exists.data_ptr(), weights, old_features, logits, margins,
            None if noise is None else noise.data_ptr(), noise_scale, temperatures, is_refined.data_ptr(),
            ids.data_ptr(), features.data_ptr(),
        )  # fmt: skip
        room = memory.address(self.library.refinement_bytes(byref(arguments)))
        self.library.run_refinement(byref(arguments), byref(self.library.openmp), room)
        return ids, features
