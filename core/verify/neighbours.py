"""Which codes are near which in a tokenizer's codebook: the table LANTERN reads, `[V, k]`, never `[V, V]`."""

from __future__ import annotations

import torch
from torch import Tensor

from polydraft.core.errors import InvalidArgument


def nearest(codes: Tensor, k: int) -> Tensor:
    """The k nearest other codes of every id, nearest first, by L2; -1 for ids that are no codes.

    codes: `[V, D]` as the tokenizer looks them up (normalised where it normalises), nan for ids that are no codes.
    """
    ids = codes.isfinite().all(-1).nonzero().squeeze(-1)
    if not 1 <= k < len(ids):
        raise InvalidArgument(
            f"k={k} is not possible; this model's codebook has {len(ids)} codes, so use 1 to {len(ids) - 1}."
        )
    table = torch.full((len(codes), k), -1, device=codes.device)
    known = codes[ids].float()
    for part in ids.split(512):
        distance = torch.cdist(codes[part].float(), known)
        distance[part[:, None] == ids] = torch.inf  # not itself
        table[part] = ids[distance.topk(k, largest=False).indices]
    return table
