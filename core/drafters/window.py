"""What Jacobi drafters share: a window of guesses a pass, of which rows keep tensors between passes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from polydraft.core.drafters.initial import Initial
from polydraft.core.errors import InvalidArgument

Kept = TypeVar("Kept", bound="Any")


@dataclass
class WindowDrafter:
    """window: guesses a pass; initial: what fills places no pass has guessed yet.

    What it keeps is a dataclass of tensors, a row each, with `known`; a law that no pass has said yet is None.
    """

    window: int
    initial: Initial

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InvalidArgument(f"window={self.window} is too small; it must be 1 or more.")

    @property
    def reach(self) -> int:
        return self.window

    @property
    def nodes(self) -> int:
        return self.window

    def select(self, drafts: Kept, rows: list[int]) -> Kept:
        return type(drafts)(*(None if part is None else part[rows] for part in vars(drafts).values()))

    def concat(self, drafts: list[Kept]) -> Kept:
        # a row that joins has no law yet: uniform logits draw from the noise alone
        flat = self.initial.flat

        def joined(name: str) -> Tensor:
            parts = [(getattr(d, name), len(d.known)) for d in drafts]
            return torch.cat([flat.expand(rows, -1) if part is None else part for part, rows in parts])

        return type(drafts[0])(*(joined(field.name) for field in fields(drafts[0])))
