"""What a drafter leaves out of a prompt: ids that stand for what only the target can see."""

from __future__ import annotations

from torch import Tensor


def counted(columns: Tensor, last: Tensor) -> Tensor:
    """How many of columns `[B*R, L]` bool hold up to and at `last` `[B, R]`."""
    return columns.cumsum(1).gather(1, last.view(-1, 1)).view_as(last)


def in_front(read: Tensor, *columns: Tensor) -> tuple[Tensor, ...]:
    """Columns `[B, L]` or `[B, L, D]` with those where `read` `[B, L]` holds first, in their order."""
    order = (~read).int().argsort(dim=1, stable=True)
    return tuple(
        column.gather(1, order if column.ndim == 2 else order[..., None].expand_as(column)) for column in columns
    )
