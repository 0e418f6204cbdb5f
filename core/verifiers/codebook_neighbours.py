"""Neighbours in a tokenizer's codebook: the table of LANTERN, `[V, k]` and never `[V, V]`, and the groups of PCG."""

from __future__ import annotations

import torch
from torch import Tensor

from polydraft.core.errors import InvalidArgument


def nearest_codes(codebook: Tensor, k: int) -> Tensor:
    """Return the k nearest other codes of every id by L2 distance, nearest first.

    Args:
        codebook (Tensor): `[V, D]` embeddings of size D as the tokenizer looks them up (normalised if it normalises
            them), NaN for ids that are no codes.
        k (int): neighbours of a code.

    Returns:
        Tensor: `[V, k]` int64, -1 for ids that are no codes.

    Raises:
        InvalidArgument: the codebook has no k other codes.
    """
    ids = codebook.isfinite().all(-1).nonzero().squeeze(-1)  # of codes
    if not 1 <= k < len(ids):
        raise InvalidArgument(
            f"k={k} is not possible; this model's codebook has {len(ids)} codes, so use 1 to {len(ids) - 1}."
        )
    table = torch.full((len(codebook), k), -1, device=codebook.device)
    codes = codebook[ids].float()
    for chunk in ids.split(512):  # 512 codes at a time, because a matrix of all pairs may not fit into memory
        distance = torch.cdist(codebook[chunk].float(), codes)
        distance[chunk[:, None] == ids] = torch.inf  # a code is no neighbour of itself
        table[chunk] = ids[distance.topk(k, largest=False).indices]
    return table


def similarity_groups(codebook: Tensor, theta: float) -> Tensor:
    """Return the group G(t) of every id t: t itself and the codes whose cosine similarity to t is above theta.

    Args:
        codebook (Tensor): `[V, D]` embeddings of ids; NaN for ids that are no codes, whose group is the id alone.
        theta (float): cosine similarity, -1 to 1.

    Returns:
        Tensor: `[V, m]` int64 for groups of up to m ids. Row t has the ids of G(t): t itself, then the others, the
            nearest first, then -1 as padding. The relation is symmetric: t is in G(s) if s is in G(t).
    """
    ids = codebook.isfinite().all(-1).nonzero().squeeze(-1)  # of codes
    codes = torch.nn.functional.normalize(codebook[ids].double(), dim=-1)
    groups_by_chunk = []  # chunks of 512 codes, because a matrix of all pairs may not fit into memory
    for start, chunk in zip(range(0, len(ids), 512), codes.split(512), strict=True):
        cosine = chunk @ codes.T  # [512, number of codes]
        # 2 is above any cosine, so every code is the first of its own group; its column is `start` + its row
        cosine.diagonal(start).fill_(2)
        nearest = cosine.topk(int((cosine > theta).sum(1).max()))  # as many as the largest group of the chunk has
        groups_by_chunk.append(ids[nearest.indices].masked_fill(nearest.values <= theta, -1))
    max_size = max((groups.shape[1] for groups in groups_by_chunk), default=1)
    table = torch.full((len(codebook), max_size), -1, device=codebook.device)
    table[:, 0] = torch.arange(len(codebook), device=codebook.device)  # ids that are no codes: a group of their own
    for groups, chunk_ids in zip(groups_by_chunk, ids.split(512), strict=True):
        table[chunk_ids, : groups.shape[1]] = groups
    return table
