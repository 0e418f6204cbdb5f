"""Codes that look alike learn alike: what one of them teaches an embedding or a head moves its neighbours too.

    share([model.model.embed_tokens.weight, model.lm_head.weight], tokenizer.codebook)

A ground's code has dozens of near equals, each of them rare, and a table with a row a code has to meet every one of
them in every place. With rows `P + K Q`, K the shares of a code's nearest neighbours, all of them would learn at once;
gradient descent on P and Q moves the rows by `(1 + K K') g`. That product is all there is of it here: the model stays
an ordinary one, and the best rows are the same.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

NEAR, WIDTH = 24, 8  # neighbours that share; the distance to so manieth is what a share falls with


def shares(codebook: Tensor) -> Tensor:
    """`[N, N]`, sparse, rows add up to 1: how near the nearest codes are; codebook: unit vectors `[N, D]`."""
    likeness = (codebook @ codebook.T).fill_diagonal_(-torch.inf)
    near, who = likeness.topk(min(NEAR, len(codebook) - 1))
    width = (1 - near[:, min(WIDTH, near.shape[1]) - 1]).mean()
    part = (near / width).softmax(-1)
    rows = torch.arange(len(codebook))[:, None].expand_as(who)
    where = torch.stack([rows, who]).flatten(1)
    return torch.sparse_coo_tensor(where, part.flatten(), 2 * [len(codebook)], check_invariants=True).coalesce()


def share(tables: Iterable[Tensor], codebook: Tensor) -> None:
    """From now on gradients of `tables`, each `[words + N, W]`, are shared among the codes of their last N rows."""
    kernel = shares(codebook.float())
    back = kernel.T.coalesce()

    def spread(gradient: Tensor) -> Tensor:
        words, codes = gradient[: -len(codebook)], gradient[-len(codebook) :]
        return torch.cat([words, codes + kernel @ (back @ codes)])

    for table in tables:
        table.register_hook(spread)
