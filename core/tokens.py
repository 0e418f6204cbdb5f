"""Tensor operations on both kinds of tokens: ids `[B, L]` and latents `[B, L, C]`.

The decoding loop needs no more than these, which is why it serves both kinds.

batch_gather(tokens, index)          # the tokens at `index` [B, K] of every row
batch_where(mask, first, second)     # torch.where with one mask value per token
tokens_equal(first, second)          # [B, K] bool
is_in_mask(ids, mask)                # which ids a `[V]` mask selects
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.batched_state import cached_arange


def batch_gather(values: Tensor, index: Tensor) -> Tensor:
    """Return `values[b, index[b, k]]` for every batch row b and every k.

    Args:
        values (Tensor): `[B, L]` or `[B, L, …]`, tokens or anything else stored per position.
        index (Tensor): `[B, K]` int64, positions to gather.

    Returns:
        Tensor: `[B, K]` or `[B, K, …]`.
    """
    if values.ndim == 2:
        return values.gather(1, index)
    if (num_rows := values.shape[0]) > 1:
        index = index + values.shape[1] * cached_arange(num_rows, index.device)[:, None]  # index into [B * L, …]
    return F.embedding(index, values.flatten(0, 1))  # faster than indexing: copies the whole vector of a position


def batch_scatter_(values: Tensor, index: Tensor, new: Tensor) -> None:
    """Set `values[b, index[b, k]] = new[b, k]` in place: values `[B, L, …]`, index `[B, K]`, new `[B, K, …]`."""
    if values.ndim == 2:
        values.scatter_(1, index, new)
    else:
        values[cached_arange(len(index), index.device)[:, None], index] = new


def batch_where(mask: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return `first` where `mask` `[B, K]` is true, else `second`, `[B, K, …]` each."""
    return torch.where(mask.view(*mask.shape, *(1,) * (first.ndim - mask.ndim)), first, second)


def tokens_equal(first: Tensor, second: Tensor) -> Tensor:
    """Return `[B, K]` bool: True where tokens `[B, K]`, or latents `[B, K, C]`, are equal in every coordinate."""
    equal = first == second
    return equal if equal.ndim == 2 else equal.flatten(2).all(-1)


def is_in_mask(ids: Tensor, mask: Tensor) -> Tensor:
    """Return `mask[ids]`, a bool of the shape of `ids`; False for ids from V on, which only prompts contain.

    Args:
        ids (Tensor): Token ids of any shape.
        mask (Tensor): `[V]` bool.
    """
    return mask[ids.clamp(max=len(mask) - 1)] & (ids < len(mask))


def expand_batch(tokens: Tensor, num_rows: int) -> Tensor:
    """Return the tokens `[N, …]` of one batch row repeated for `num_rows` rows, `[num_rows, N, …]`, as a view."""
    return tokens.expand(num_rows, *tokens.shape)
