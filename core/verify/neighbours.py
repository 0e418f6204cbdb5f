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


def groups(codes: Tensor, theta: float) -> Tensor:
    """G(t), the codes whose cosine with t is above theta: `[V, m]`, t itself, then nearest first; -1 beyond the last.

    codes: `[V, D]`, nan for ids that are no codes; these are alone. t is in G(s) where s is in G(t).
    """
    ids = codes.isfinite().all(-1).nonzero().squeeze(-1)
    known = torch.nn.functional.normalize(codes[ids].double(), dim=-1)
    found = []
    for start, part in zip(range(0, len(ids), 512), known.split(512), strict=True):
        cosine = part @ known.T
        cosine.diagonal(start).fill_(2)
        near = cosine.topk(int((cosine > theta).sum(1).max()))
        found.append(ids[near.indices].masked_fill(near.values <= theta, -1))
    table = torch.full((len(codes), max((part.shape[1] for part in found), default=1)), -1, device=codes.device)
    table[:, 0] = torch.arange(len(codes), device=codes.device)
    for part, rows in zip(found, ids.split(512), strict=True):
        table[rows, : part.shape[1]] = part
    return table
