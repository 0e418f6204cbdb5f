"""What a scene has still to show, told cell by cell: helps `target.py` to learn counting, and is dropped afterwards.

    ledger = Ledger(width=256)
    loss = ledger(hidden_states[LAYER], batch)

Whether one thing too many begins is a hundredth of a nat a code, and the noise of all other codes drowns what it
teaches. What has not begun yet is known at every cell: while the LM learns, a linear layer behind a middle one tells
it, and later layers have at hand what decides whether anything may begin.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.apps.train.image.data import MOST_LISTED, Batch
from polydraft.modalities.world.glyphs import KINDS

LAYER = 7  # whose output tells what is owing
MANY = 3  # of a kind: more are told as this many


class Ledger(nn.Module):
    """Behind hidden states `[B, L, D]` of width D, as they are where the next code is drawn."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.owing = nn.Linear(width, MANY * len(KINDS))
        nn.init.constant_(self.owing.bias, -4.0)

    def forward(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Mean nats a code, of which things have not begun."""
        codes = batch.cells[:, 1:] >= 0
        told = self.owing(hidden[:, :-1][codes]).float()
        missed = F.binary_cross_entropy_with_logits(told, owed(batch)[:, 1:][codes].flatten(1), reduction="none")
        return missed.sum(-1).mean()


def owed(batch: Batch) -> Tensor:
    """`[B, L, KINDS, MANY]`, 0 or 1: whether so many things of a kind, or more, begin at a code or after it."""
    rows, length = batch.cells.shape
    count = torch.zeros(rows, length, len(KINDS) + 1)
    waits = (batch.begins[:, None] >= batch.cells[..., None]).float()  # [B, L, MOST_LISTED]
    count.scatter_add_(2, batch.kinds[:, None].expand(rows, length, MOST_LISTED), waits)
    return (count[..., :-1, None] > torch.arange(MANY)).float()
