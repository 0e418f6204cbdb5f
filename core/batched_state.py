"""Batched containers whose rows, one per request, are appended and removed.

Rows are appended at the end. Where a row is removed, the last row takes its place, so at most one row moves for each
row that is removed.

    removal = RowRemoval.from_rows([2, 5], num_rows=8)
    state.remove_rows(removal)              # every tensor, list and cache of it
    names = removal.apply_to_list(names)    # a list kept outside of it
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

T = TypeVar("T")


@lru_cache(maxsize=256)
def cached_arange(count: int, device: torch.device) -> Tensor:
    """Return the int64 tensor 0 … count - 1, `[count]`; callers share it and must not write to it.

    It is cached because hot paths ask for it many times in a pass.
    """
    with torch.inference_mode(False):  # a tensor made in inference mode could not be used in training later
        return torch.arange(count, device=device)


def next_positions(counts: Tensor, num: int) -> Tensor:
    """Return positions `counts[b]` … `counts[b] + num - 1` of every batch row b, `[B, num]`; `counts` is `[B]`."""
    return counts[:, None] + cached_arange(num, counts.device)


@dataclass(frozen=True)
class RowRemoval:
    """Plan to remove batch rows: row `moved_rows[i]` is moved to `gaps[i]`, then the first `num_kept` rows stay."""

    gaps: list[int]  # removed rows below `num_kept`
    moved_rows: list[int]  # remaining rows from `num_kept` on, which fill the gaps
    num_kept: int

    @staticmethod
    def from_rows(removed: Iterable[int], num_rows: int) -> RowRemoval:
        """Plan the removal of the rows with indices `removed` from a batch of `num_rows` rows."""
        removed = set(removed)
        num_kept = num_rows - len(removed)
        return RowRemoval(
            gaps=sorted(row for row in removed if row < num_kept),
            moved_rows=[row for row in range(num_kept, num_rows) if row not in removed],
            num_kept=num_kept,
        )

    def apply_to_list(self, values: list[T]) -> list[T]:
        """Apply the removal to a list with one element per row (changed in place); return the elements that stay."""
        for gap, moved in zip(self.gaps, self.moved_rows, strict=True):
            values[gap] = values[moved]
        return values[: self.num_kept]

    def apply_to_tensor(self, values: Tensor) -> Tensor:
        """Apply the removal to a tensor `[B, …]` in place; return a view `[num_kept, …]` of the rows that stay."""
        for gap, moved in zip(self.gaps, self.moved_rows, strict=True):
            values[gap].copy_(values[moved])
        return values[: self.num_kept]


@runtime_checkable
class SupportsRowRemoval(Protocol):
    """Interface of containers that batch rows can be removed from: a `BatchedState` or a KV cache."""

    def remove_rows(self, removal: RowRemoval) -> None:
        """Remove rows in place, as planned by `removal`."""


class BatchedState:
    """Mix-in for dataclasses whose tensor fields `[B, …]` and list fields have one element per batch row.

    Fields of other types are shared by all rows.
    """

    def remove_rows(self, removal: RowRemoval) -> None:
        """Remove batch rows from every tensor, list and nested container among the fields, in place."""
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                setattr(self, field.name, removal.apply_to_tensor(value))
            elif isinstance(value, list):
                setattr(self, field.name, removal.apply_to_list(value))
            elif isinstance(value, SupportsRowRemoval):
                value.remove_rows(removal)

    def append_rows(self, new: Any) -> None:
        """Append the rows of `new`, a state of the same class, to every field.

        Tensors that are smaller along a dimension other than the first are padded with zeros.
        """
        for field in fields(self):  # type: ignore[arg-type]
            value, new_value = getattr(self, field.name), getattr(new, field.name)
            if isinstance(value, Tensor):
                setattr(self, field.name, torch.cat(pad_to_common_shape([value, new_value])))
            elif isinstance(value, list):
                value.extend(new_value)
            elif isinstance(value, BatchedState):
                value.append_rows(new_value)


def pad_to_common_shape(tensors: list[Tensor]) -> list[Tensor]:
    """Return tensors `[B_i, …]` padded with zeros at the end of each dimension but the first, to their largest size."""
    common_shape = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]

    def padding(tensor: Tensor) -> list[int]:
        """Return the argument of `F.pad`: (zeros before, zeros after) per dimension, the last dimension first."""
        missing = [wanted - size for wanted, size in zip(common_shape, tensor.shape[1:], strict=True)]
        return [amount for num_missing in reversed(missing) for amount in (0, num_missing)]

    return [F.pad(tensor, padding(tensor)) for tensor in tensors]
