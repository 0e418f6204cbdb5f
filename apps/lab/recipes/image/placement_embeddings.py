"""Initial embeddings of placement words: sinusoids of their cells at the rotary frequencies.

    init_placement_embeddings([model.model.embed_tokens.weight], vocabulary, frequencies)

A code has to detect whether a placement in the plan is its own cell. Attention knows the distance to the plan; a key
that holds cosines and sines of the cell at the rotary frequencies (Su et al. 2021, "RoFormer", section 3.2) matches a
query at one distance alone, so a linear layer can detect it. Row and column have sinusoids of their own.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Tokenizer
from torch import Tensor

from polydraft.modalities.image import scene_plan
from polydraft.modalities.world.scene import GRID_SIDE


def placement_waves(frequencies: Tensor) -> Tensor:
    """Return features [P, F] of every placement, of unit variance on average."""
    placements = scene_plan.placement_tokens().values()
    sizes = sorted({size for size, _, _ in placements})
    indices = torch.tensor([(sizes.index(size), row, column) for size, row, column in placements])
    size, row, column = indices.double().unbind(-1)
    edge = torch.arange(1, GRID_SIDE // 2) * torch.pi / GRID_SIDE
    angles = torch.cat(
        [(row * GRID_SIDE + column)[:, None] * frequencies.double(), row[:, None] * edge, column[:, None] * edge], 1
    )
    found = torch.cat([angles.cos(), angles.sin(), (size - size.mean())[:, None] * 4], 1).float()
    return (found - found.mean(0)) / found.std()


@torch.no_grad()
def init_placement_embeddings(
    tables: Iterable[Tensor], vocabulary: Tokenizer, frequencies: Tensor, seed: int = 0
) -> None:
    """Set the rows of placement words in `tables`, each [V, D], at the scale of the other rows."""
    ids = [vocabulary.token_to_id(word) for word in scene_plan.placement_tokens()]
    features = placement_waves(frequencies)
    generator = torch.Generator().manual_seed(seed)
    for table in tables:
        spread = torch.randn(features.shape[1], table.shape[1], generator=generator) / features.shape[1] ** 0.5
        table[ids] = features @ spread * table.std()
