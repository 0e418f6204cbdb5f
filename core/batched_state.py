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
    """Return 0 … count - 1 as a shared tensor, which must not be written to.

    It is cached because hot paths ask for it many times in a pass.
    """
    with torch.inference_mode(False):
        return torch.arange(count, device=device)


def next_positions(counts: Tensor, num: int) -> Tensor:
    """Return the `num` positions after the first `counts` `[B]` tokens of every row, `[B, num]`."""
    return counts[:, None] + cached_arange(num, counts.device)


@dataclass(frozen=True)
class RowRemoval:
    """Plan to remove rows of a batch: row `moved_rows[i]` moves to `gaps[i]`, then the first `num_kept` rows stay."""

    gaps: list[int]  # removed rows below `num_kept`
    moved_rows: list[int]  # remaining rows from `num_kept` on, which fill the gaps
    num_kept: int

    @staticmethod
    def from_rows(removed: Iterable[int], num_rows: int) -> RowRemoval:
        """Plan the removal of the rows `removed` from a batch of `num_rows`."""
        removed = set(removed)
        num_kept = num_rows - len(removed)
        return RowRemoval(
            sorted(row for row in removed if row < num_kept),
            [row for row in range(num_kept, num_rows) if row not in removed],
            num_kept,
        )

    def apply_to_list(self, values: list[T]) -> list[T]:
        """Move the entries of a list, and return those that stay."""
        for gap, moved in zip(self.gaps, self.moved_rows, strict=True):
            values[gap] = values[moved]
        return values[: self.num_kept]

    def apply_to_tensor(self, values: Tensor) -> Tensor:
        """Move the rows of a tensor `[B, …]` in place, and return a view of those that stay."""
        for gap, moved in zip(self.gaps, self.moved_rows, strict=True):
            values[gap].copy_(values[moved])
        return values[: self.num_kept]


@runtime_checkable
class SupportsRowRemoval(Protocol):
    """Container that rows can be removed from: a `BatchedState` or a KV cache."""

    def remove_rows(self, removal: RowRemoval) -> None:
        """Remove rows in place."""


class BatchedState:
    """Mix-in for dataclasses whose tensors `[B, …]` and lists have one entry per row.

    Fields of other types are shared by all rows.
    """

    def remove_rows(self, removal: RowRemoval) -> None:
        """Remove rows from every field, in place."""
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                setattr(self, field.name, removal.apply_to_tensor(value))
            elif isinstance(value, list):
                setattr(self, field.name, removal.apply_to_list(value))
            elif isinstance(value, SupportsRowRemoval):
                value.remove_rows(removal)

    def append_rows(self, new: Any) -> None:
        """Append the rows of `new`, a state of the same class; narrower tensors are padded with zeros."""
        for field in fields(self):  # type: ignore[arg-type]
            value, more = getattr(self, field.name), getattr(new, field.name)
            if isinstance(value, Tensor):
                setattr(self, field.name, torch.cat(pad_to_common_shape([value, more])))
            elif isinstance(value, list):
                value.extend(more)
            elif isinstance(value, BatchedState):
                value.append_rows(more)


def pad_to_common_shape(tensors: list[Tensor]) -> list[Tensor]:
    """Pad tensors `[B, …]` with zeros at their ends so that all dimensions but the first are equal."""
    common_shape = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]

    def padding(tensor: Tensor) -> list[int]:
        missing = [wanted - size for wanted, size in zip(common_shape, tensor.shape[1:], strict=True)]
        return [amount for short in reversed(missing) for amount in (0, short)]

    return [F.pad(tensor, padding(tensor)) for tensor in tensors]
