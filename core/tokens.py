"""Tensor operations on both kinds of tokens: ids `[B, L]` and latents `[B, L, C]`.

The decoding loop needs no more than these, which is why it serves both kinds.

batch_gather(tokens, index)          # the tokens at `index` [B, K] of every row
batch_where(mask, first, second)     # torch.where with one mask entry per token
tokens_equal(first, second)          # [B, K] bool
is_in_mask(ids, mask)                # which ids a `[V]` mask selects
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.batched_state import cached_arange


def batch_gather(values: Tensor, index: Tensor) -> Tensor:
    """Gather entries along dimension 1, with an index of its own for every row.

    Args:
        values (Tensor): `[B, L]` or `[B, L, …]`, tokens or anything else stored per position.
        index (Tensor): `[B, K]` int64.

    Returns:
        Tensor: `[B, K]` or `[B, K, …]`.
    """
    if values.ndim == 2:
        return values.gather(1, index)
    if (rows := values.shape[0]) > 1:
        index = index + values.shape[1] * cached_arange(rows, index.device)[:, None]
    return F.embedding(index, values.flatten(0, 1))  # copies all numbers of an entry at once


def batch_scatter_(values: Tensor, index: Tensor, new: Tensor) -> None:
    """Write `new` `[B, K, …]` at `index` `[B, K]` along dimension 1 of `values` `[B, L, …]`, in place."""
    if values.ndim == 2:
        values.scatter_(1, index, new)
    else:
        values[cached_arange(len(index), index.device)[:, None], index] = new


def batch_where(mask: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return `first` where `mask` `[B, K]` is true, else `second`, `[B, K, …]` each."""
    return torch.where(mask.view(*mask.shape, *(1,) * (first.ndim - mask.ndim)), first, second)


def tokens_equal(first: Tensor, second: Tensor) -> Tensor:
    """Return `[B, K]` bool: tokens `[B, K, …]` that are equal in every coordinate."""
    equal = first == second
    return equal if equal.ndim == 2 else equal.flatten(2).all(-1)


def is_in_mask(ids: Tensor, mask: Tensor) -> Tensor:
    """Return `[...]` bool: ids that `mask` `[V]` selects; ids from V on, which only prompts contain, never are."""
    return mask[ids.clamp(max=len(mask) - 1)] & (ids < len(mask))


def expand_batch(tokens: Tensor, rows: int) -> Tensor:
    """Expand the tokens `[N, …]` of one row to `[rows, N, …]`, as a view."""
    return tokens.expand(rows, *tokens.shape)
