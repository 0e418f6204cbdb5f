"""Draft trees of fixed shape, grown with Hydra heads in one call of the C library."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, Structure, addressof, byref, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polydraft.core.native.library import Matrix, memory
from polydraft.core.native.weights import NativeWeight

if TYPE_CHECKING:
    from polydraft.core.native.library import Library


class TreeLevelStructure(Structure):
    """One level of the shape, equal in all batch rows, and the head that predicts it."""

    _fields_ = [
        ("mix", Matrix), ("table", c_void_p), ("ranks", c_int32), ("nodes", c_int32), ("ranked", c_void_p),
        ("frontier", c_int32), ("expanded", c_void_p), ("parents", c_void_p),
    ]  # fmt: skip


class HeadsStructure(Structure):
    """Arguments of a draft."""

    _fields_ = [
        *((name, c_int32) for name in (
            "rows", "branches", "levels", "depth", "hidden", "inner", "vocab", "is_bf16", "num_threads", "total_nodes",
            "max_frontier",
        )),
        ("tree", POINTER(TreeLevelStructure)), ("lm_head", Matrix), ("hidden_states", c_void_p),
        ("projected", c_void_p), ("factors", c_void_p), ("biases", c_void_p), ("bias_row_stride", c_int64),
        ("bias_level_stride", c_int64), ("guidance", c_void_p), ("ids", c_void_p), ("tokens", c_void_p),
        ("values", c_void_p),
    ]  # fmt: skip


@dataclass(frozen=True)
class LevelShape:
    """One level of a tree of fixed shape."""

    num_ranks: int  # children that are ranked of every frontier node of the level before
    ranked: tuple[int, ...]  # which of all ranked children are nodes
    expanded: tuple[int, ...]  # which nodes have children
    parents: tuple[int, ...]  # their parents among the frontier nodes of the level before


@dataclass(frozen=True)
class ChildTerms:
    """Factors and biases that turn the heads' logits into scores of children: `logits * factors + biases`."""

    factors: Tensor  # [B] float32
    biases: Tensor  # [B, levels, V] float32, expanded from one row or level where they are equal
    guidance_scales: Tensor  # [B] float32
    ids: Tensor | None  # [V] token ids of the logits; None: their indices


class NativeHeads:
    """Hydra heads whose drafts are calls of the C library.

    Args:
        mixes (Sequence[NativeWeight]): The matrix W of every head, with bias.
        tables (Sequence[Tensor]): For every head but the first, what a token of the level before adds to the terms of
            it and of later heads, `[token ids, later heads * H]`, in the weights' dtype.
    """

    def __init__(self, mixes: Sequence[NativeWeight], tables: Sequence[Tensor]) -> None:
        self.mixes: Sequence[NativeWeight] = mixes
        self.tables: list[Tensor] = [table.contiguous() for table in tables]
        self.library: Library = mixes[0].library
        self.dtype: torch.dtype = mixes[0].dtype
        self.inner: int = mixes[0].inputs
        self.shapes: dict[tuple[LevelShape, ...], TreeStructure] = {}

    def grow(
        self, shape: Sequence[LevelShape], lm_head: NativeWeight, hidden_states: Tensor, projected: Tensor,
        terms: ChildTerms,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Grow a tree below the root of every batch row.

        Args:
            shape (Sequence[LevelShape]): The levels, at most as many as heads.
            lm_head (NativeWeight): Of V outputs.
            hidden_states (Tensor): `[B, R, D]` of the target, before the root, in R guidance branches.
            projected (Tensor): `[B, R, heads * H]`, terms of hidden state and root for all heads.
            terms (ChildTerms): How logits become scores.

        Returns:
            Token ids `[B, N]` and scores `[B, N]` of all nodes, level by level.
        """
        (rows, branches, hidden), levels = hidden_states.shape, len(self.mixes)
        hidden_states, projected = hidden_states.contiguous(), projected.contiguous()
        tree = self.tree_structure(tuple(shape))
        tokens, values = torch.empty(rows, tree.num_nodes, dtype=torch.long), torch.empty(rows, tree.num_nodes)
        biases = terms.biases.expand(rows, len(shape), -1)
        work = rows * branches * tree.max_frontier * (lm_head.num_weights + self.mixes[0].num_weights)
        arguments = HeadsStructure(
            rows, branches, levels, len(shape), hidden, self.inner, lm_head.num_outputs,
            self.dtype == torch.bfloat16, self.library.num_threads(work), tree.num_nodes, tree.max_frontier,
            tree.levels,
            lm_head.matrix, hidden_states.data_ptr(), projected.data_ptr(), terms.factors.data_ptr(),
            biases.data_ptr(), biases.stride(0), biases.stride(1), terms.guidance_scales.data_ptr(),
            None if terms.ids is None else terms.ids.data_ptr(), tokens.data_ptr(), values.data_ptr(),
        )  # fmt: skip
        room = memory.address(self.library.heads_bytes(byref(arguments)))
        self.library.run_heads(byref(arguments), byref(self.library.openmp), room)
        return tokens, values

    def tree_structure(self, shape: tuple[LevelShape, ...]) -> TreeStructure:
        """Return a shape as the C library reads it, kept for the next draft."""
        if shape not in self.shapes:
            indices = [list(map(to_indices, (level.ranked, level.expanded, level.parents))) for level in shape]
            levels = (TreeLevelStructure * len(shape))()
            for structure, level, arrays, mix, table in zip(
                levels, shape, indices, self.mixes, [*self.tables, None], strict=False
            ):
                ranked, expanded, parents = map(addressof, arrays)
                structure.mix, structure.table = mix.matrix, None if table is None else table.data_ptr()
                structure.ranks, structure.nodes, structure.ranked = level.num_ranks, len(level.ranked), ranked
                structure.frontier, structure.expanded, structure.parents = len(level.expanded), expanded, parents
            num_nodes = sum(len(level.ranked) for level in shape)
            max_frontier = max(1, *(len(level.expanded) for level in shape))
            self.shapes[shape] = TreeStructure(levels, num_nodes, max_frontier, indices)
        return self.shapes[shape]


@dataclass(frozen=True)
class TreeStructure:
    """A shape as the C library reads it."""

    levels: Any  # array of `TreeLevelStructure`
    num_nodes: int
    max_frontier: int  # most nodes of a level that have children
    indices: Any  # arrays that `levels` point to


def to_indices(values: Sequence[int]) -> Any:
    """Return indices as a C array."""
    return (c_int32 * len(values))(*values)
