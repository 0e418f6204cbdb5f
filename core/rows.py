"""Rows of a batch: whatever holds one entry a request, in one order. A row joins at the end, and where one leaves the
last takes its place, so at most one row moves for each that leaves.

    leaving = Departure.of([2, 5], rows=8)
    state.leave(leaving)                    # every tensor, list and cache of it
    names = leaving.list_of(names)          # a list beside it
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
def places(count: int, device: torch.device) -> Tensor:
    """0 … count - 1; kept, since hot paths ask for it many times a pass. Not to be written to."""
    with torch.inference_mode(False):
        return torch.arange(count, device=device)


def following(count: Tensor, ahead: int) -> Tensor:
    """`[B, ahead]`: the positions behind `count` `[B]` tokens."""
    return count[:, None] + places(ahead, count.device)


@dataclass(frozen=True)
class Departure:
    """Row `movers[i]` takes the place `gaps[i]`, then the first `left` rows stay."""

    gaps: list[int]
    movers: list[int]
    left: int

    @staticmethod
    def of(leaving: Iterable[int], rows: int) -> Departure:
        gone = set(leaving)
        left = rows - len(gone)
        return Departure(
            sorted(row for row in gone if row < left), [r for r in range(left, rows) if r not in gone], left
        )

    def list_of(self, values: list[T]) -> list[T]:
        for gap, mover in zip(self.gaps, self.movers, strict=True):
            values[gap] = values[mover]
        return values[: self.left]

    def tensor_of(self, values: Tensor) -> Tensor:
        for gap, mover in zip(self.gaps, self.movers, strict=True):
            values[gap].copy_(values[mover])
        return values[: self.left]


@runtime_checkable
class Leaves(Protocol):
    """What rows can leave: `Rows`, and caches."""

    def leave(self, leaving: Departure) -> None: ...


class Rows:
    """Mix-in for dataclasses whose tensors `[B, …]` and lists hold an entry a row; other fields belong to all rows."""

    def leave(self, leaving: Departure) -> None:
        """Rows leave; see `Departure`."""
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                setattr(self, field.name, leaving.tensor_of(value))
            elif isinstance(value, list):
                setattr(self, field.name, leaving.list_of(value))
            elif isinstance(value, Leaves):
                value.leave(leaving)

    def extend(self, new: Any) -> None:
        """The rows of `new`, of the same kind, join; narrower tensors are padded with zeros."""
        for field in fields(self):  # type: ignore[arg-type]
            value, more = getattr(self, field.name), getattr(new, field.name)
            if isinstance(value, Tensor):
                setattr(self, field.name, torch.cat(alike([value, more])))
            elif isinstance(value, (list, Rows)):
                value.extend(more)


def alike(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors `[B, …]` padded at their ends to one shape but for B."""
    shape = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]

    def padding(tensor: Tensor) -> list[int]:
        short = [wanted - size for wanted, size in zip(shape, tensor.shape[1:], strict=True)]
        return [amount for missing in reversed(short) for amount in (0, missing)]

    return [F.pad(tensor, padding(tensor)) for tensor in tensors]
