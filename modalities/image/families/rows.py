"""Image families whose rows end with an id of their own: a row of codes, then its end.

The loop's ids are the codes and, behind them, the end of a row. Which of the two is allowed follows from the position,
so that row ends cost no pass with any drafter, and no row has another length with any verifier. The end of the last
row, and what would end the image behind it, is never generated.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from polydraft.core.sampling.context import GenerationContext
from polydraft.modalities.image.family import ImageFamily


class RowDelimiterFamily(ImageFamily):
    """Mixin of families with row ends, to be put before the family itself."""

    max_forced_tokens: ClassVar[int] = 1
    num_prefix_tokens_read: int = 0
    first_code_text_id: int  # the text vocabulary's id of code 0
    row_end_text_id: int  # the text vocabulary's id of the end of a row

    @property
    def num_new_tokens(self) -> int:
        return self.grid[0] * self.row_stride - 1

    @property
    def row_stride(self) -> int:
        return self.grid[1] + 1

    @property
    def code_indices(self) -> Tensor:
        positions = torch.arange(self.num_new_tokens)
        codes = positions // self.row_stride * self.grid[1] + positions % self.row_stride
        return codes.where(positions % self.row_stride < self.grid[1], -1)

    @cached_property
    def allowed_tokens(self) -> Tensor:
        """Return `[2, vocab_size]` bool: codes, and the end of a row."""
        is_row_end = torch.arange(self.vocab_size, device=self.device) == self.vocab_size - 1
        return torch.stack([~is_row_end, is_row_end])

    def grammar_state(self, context: GenerationContext) -> Tensor:
        return ((context.positions + 1) % self.row_stride == 0).long()

    def embed_generated(self, ids: Tensor) -> Tensor:
        return self.embed_prompt((ids + self.first_code_text_id).where(ids < self.vocab_size - 1, self.row_end_text_id))
