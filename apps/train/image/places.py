"""What words for places begin as: waves over the cells they name, turned as rotary attention turns what is so far on.

    begin([model.model.embed_tokens.weight], vocabulary, frequencies)

A code has to find out whether a place in the plan is its own. Attention sees how far back the plan is; a key that holds
cosines and sines of the place at the rotary frequencies (Su et al. 2021, "RoFormer", section 3.2) matches a query at
one distance alone, so that a linear layer finds it. Row and column have waves of their own too.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Tokenizer
from torch import Tensor

from polydraft.modalities.image import plan
from polydraft.modalities.world.scene import SIDE


def waves(frequencies: Tensor) -> Tensor:
    """`[P, F]` of every place of `plan.places`: unit variance on average."""
    sizes = sorted({size for size, _, _ in plan.places().values()})
    spots = torch.tensor([(sizes.index(size), row, column) for size, row, column in plan.places().values()])
    size, row, column = spots.double().unbind(-1)
    edge = torch.arange(1, SIDE // 2) * torch.pi / SIDE
    angles = torch.cat(
        [(row * SIDE + column)[:, None] * frequencies.double(), row[:, None] * edge, column[:, None] * edge], 1
    )
    found = torch.cat([angles.cos(), angles.sin(), (size - size.mean())[:, None] * 4], 1).float()
    return (found - found.mean(0)) / found.std()


@torch.no_grad()
def begin(tables: Iterable[Tensor], vocabulary: Tokenizer, frequencies: Tensor, seed: int = 0) -> None:
    """Set the rows of words for places in `tables`, each `[V, D]`, as large as other rows are."""
    ids = [vocabulary.token_to_id(word) for word in plan.places()]
    made = waves(frequencies)
    generator = torch.Generator().manual_seed(seed)
    for table in tables:
        spread = torch.randn(made.shape[1], table.shape[1], generator=generator) / made.shape[1] ** 0.5
        table[ids] = made @ spread * table.std()
