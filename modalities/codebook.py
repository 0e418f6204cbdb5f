"""Codebook embeddings laid out over a vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor


def expand_codebook(vocab_size: int, first_id: int, codebook: Tensor) -> Tensor:
    """Place codebook embeddings at their token ids.

    Args:
        vocab_size (int): number of token ids.
        first_id (int): the token id of the first code.
        codebook (Tensor): `[K, D]` embedding of every code.

    Returns:
        Tensor: `[V, D]`, NaN at ids that are no codes.
    """
    expanded = torch.full((vocab_size, codebook.shape[1]), torch.nan, device=codebook.device)
    expanded[first_id : first_id + len(codebook)] = codebook
    return expanded
