"""Codes among ids, whatever they are codes of."""

from __future__ import annotations

import torch
from torch import Tensor


def coded(vocab: int, first: int, vectors: Tensor) -> Tensor:
    """`[V, D]`: `vectors` at the ids from `first` on, nan elsewhere."""
    table = torch.full((vocab, vectors.shape[1]), torch.nan, device=vectors.device)
    table[first : first + len(vectors)] = vectors
    return table
