"""Gradient sharing between similar codes: the gradient of an embedding or head row also moves its neighbours.

    share_gradients([model.model.embed_tokens.weight, model.lm_head.weight], tokenizer.codebook)

A background's code has dozens of near duplicates, each of them rare, and a table with a row per code has to see every
one of them in every position. With rows `P + K Q`, K being the weights of a code's nearest neighbours, all of them
would learn at once; gradient descent on P and Q moves the rows by `(1 + K K') g`. Only that product is used here: the
model stays an ordinary one, and the optimal rows are the same.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

NEAR, WIDTH = 24, 8  # number of neighbours; the distance to the WIDTH-th is the kernel's bandwidth


def neighbour_kernel(codebook: Tensor) -> Tensor:
    """Return a sparse kernel [N, N] over nearest codes, rows summing to 1, of unit vectors [N, D]."""
    likeness = (codebook @ codebook.T).fill_diagonal_(-torch.inf)
    near, who = likeness.topk(min(NEAR, len(codebook) - 1))
    width = (1 - near[:, min(WIDTH, near.shape[1]) - 1]).mean()
    part = (near / width).softmax(-1)
    rows = torch.arange(len(codebook))[:, None].expand_as(who)
    where = torch.stack([rows, who]).flatten(1)
    return torch.sparse_coo_tensor(where, part.flatten(), 2 * [len(codebook)], check_invariants=True).coalesce()


def share_gradients(tables: Iterable[Tensor], codebook: Tensor) -> None:
    """Register hooks that share gradients of `tables`, each [words + N, W], among the codes of their last N rows."""
    kernel = neighbour_kernel(codebook.float())
    back = kernel.T.coalesce()

    def spread(gradient: Tensor) -> Tensor:
        words, codes = gradient[: -len(codebook)], gradient[-len(codebook) :]
        return torch.cat([words, codes + kernel @ (back @ codes)])

    for table in tables:
        table.register_hook(spread)
