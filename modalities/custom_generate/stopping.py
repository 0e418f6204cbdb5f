"""transformers' stopping criteria on what a pass has committed, token by token as without drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation import stopping_criteria as library

BY_THE_LOOP = (library.MaxLengthCriteria, library.EosTokenCriteria)  # which the decoding loop has itself


class RowCriteria:
    """Stopping criteria of a call, row by row.

    Args:
        criteria (Sequence): As `generate` prepares them.
        padded_ids (Tensor): `[B, L]` prompts of all rows.
    """

    def __init__(self, criteria: Sequence[Any], padded_ids: Tensor) -> None:
        self.criteria: list[Any] = [each for each in criteria if not isinstance(each, BY_THE_LOOP)]
        self.padded_ids = padded_ids

    def stop_length(self, row: int, ids: Sequence[int], num_before: int) -> int | None:
        """Return the number of generated ids after which a row stops, None if it goes on.

        Args:
            row (int): Index of the row in the batch of the call.
            ids (Sequence[int]): Its generated ids.
            num_before (int): How many of them have been seen before.
        """
        if not self.criteria:
            return None
        device = self.padded_ids.device
        sequence = torch.cat([self.padded_ids[row], torch.tensor(ids, dtype=torch.long, device=device)])[None]
        sequence = sequence.expand(len(self.padded_ids), -1)  # a criterion may go by the index of a row
        for length in range(num_before + 1, len(ids) + 1):
            given = sequence[:, : self.padded_ids.shape[1] + length]
            if any(is_done(criterion(given, None), row) for criterion in self.criteria):
                return length
        return None


def is_done(answer: Any, row: int) -> bool:
    """Return a criterion's answer for a row: one for all rows, or a tensor `[B]`."""
    if not isinstance(answer, Tensor):
        return bool(answer)
    return bool(answer.flatten()[row if answer.numel() > 1 else 0])
