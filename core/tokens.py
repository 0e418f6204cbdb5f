"""Tokens of either kind, ids `[B, L]` or latents `[B, L, C]`: what the loop does with them asks for no more than these.

take(tokens, places)        # the tokens at places [B, K] of every row
among(ids, marked)          # which ids a table marks
either(mask, these, those)  # a choice a place
same(these, those)          # [B, K] bool
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.rows import places


def take(tokens: Tensor, at: Tensor) -> Tensor:
    """Tokens `[B, L]` or `[B, L, C]` at places `at` `[B, K]` → `[B, K, …]`; or whatever else stands in rows so."""
    if tokens.ndim == 2:
        return tokens.gather(1, at)
    if (rows := tokens.shape[0]) > 1:
        at = at + tokens.shape[1] * places(rows, at.device)[:, None]
    return F.embedding(at, tokens.flatten(0, 1))  # which copies a place's numbers at once


def put(tokens: Tensor, at: Tensor, new: Tensor) -> None:
    """Write `new` `[B, K, …]` at places `at` `[B, K]` of tokens `[B, L, …]`, in place."""
    if tokens.ndim == 2:
        tokens.scatter_(1, at, new)
    else:
        tokens[places(len(at), at.device)[:, None], at] = new


def either(mask: Tensor, these: Tensor, those: Tensor) -> Tensor:
    """`these` where mask `[B, K]` holds, else `those`, `[B, K, …]` each."""
    return torch.where(mask.view(*mask.shape, *(1,) * (these.ndim - mask.ndim)), these, those)


def same(these: Tensor, those: Tensor) -> Tensor:
    """`[B, K]` bool: which tokens `[B, K, …]` are equal, in every coordinate."""
    equal = these == those
    return equal if equal.ndim == 2 else equal.flatten(2).all(-1)


def among(ids: Tensor, marked: Tensor) -> Tensor:
    """`[...]` bool: which of ids are marked in `[V]`; ids from V on, which only prompts have, never are."""
    return marked[ids.clamp(max=len(marked) - 1)] & (ids < len(marked))


def side_by_side(tokens: Tensor, rows: int) -> Tensor:
    """Tokens `[N, …]` of one row for `rows` of them, `[rows, N, …]`."""
    return tokens.expand(rows, *tokens.shape)
