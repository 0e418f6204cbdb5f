"""Pictures whose rows end with an id of their own: a row of codes, then its end.

The loop's ids are the codes and, behind them, the end of a row. Which of both a place is follows from its position, so
that ends cost no pass, whoever drafts, and no row has another length, whoever judges. The end of the last row, and what
would end the picture behind it, is never drawn.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from polydraft.core.law.history import History
from polydraft.modalities.image.family import PictureFamily


class EndedRows(PictureFamily):
    """To be put before the family itself. first_word, end: the text's ids of code 0 and of the end of a row."""

    forced, planned = 1, 0
    first_word: int
    end: int

    @property
    def budget(self) -> int:
        return self.grid[0] * self.row - 1

    @property
    def row(self) -> int:
        return self.grid[1] + 1

    @property
    def placed(self) -> Tensor:
        places = torch.arange(self.budget)
        codes = places // self.row * self.grid[1] + places % self.row
        return codes.where(places % self.row < self.grid[1], -1)

    @cached_property
    def classes(self) -> Tensor:
        """`[2, size]`: codes, and the end of a row."""
        ends = torch.arange(self.size, device=self.device) == self.size - 1
        return torch.stack([~ends, ends])

    def slot(self, history: History) -> Tensor:
        return ((history.t + 1) % self.row == 0).long()

    def embed(self, ids: Tensor) -> Tensor:
        return self.read((ids + self.first_word).where(ids < self.size - 1, self.end))
