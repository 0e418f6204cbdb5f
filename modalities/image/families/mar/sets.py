"""Which places MAR fills when, and how strongly each set is guided; all of it is known before anything is drawn.

    sizes = set_sizes(length=256, iterations=64)      # 1 … 7 tokens, 256 in all
    scales = guidance(sizes, 2.9)
    orders = torch.stack([order(seed, 256) for seed in seeds])

Sets grow as a cosine says (Chang et al. 2022, "MaskGIT", section 3.3), guidance grows with what is drawn (Chang et al.
2023, "Muse", section 2.7).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polydraft.core.errors import InvalidArgument


def set_sizes(length: int, iterations: int) -> list[int]:
    """How many tokens every iteration draws; at least one each. Raises InvalidArgument."""
    if not 1 <= iterations <= length:
        raise InvalidArgument(f"{length} tokens cannot be drawn in {iterations} iterations; use 1 to {length}.")
    sizes, masked = [], length
    for iteration in range(1, iterations):
        share = math.cos(math.pi / 2 * iteration / iterations)
        left = max(1, min(masked - 1, math.floor(length * share)))
        sizes.append(masked - left)
        masked = left
    sizes.append(masked)
    return sizes


def guidance(sizes: list[int], scale: float) -> list[float]:
    """Every set's guidance: from 1 towards `scale`, linear in how much is drawn once the set is.

    The last set is guided as if one token were left, as published.
    """
    length, drawn, scales = sum(sizes), 0, []
    for size in sizes:
        drawn = min(drawn + size, length - 1)
        scales.append(1 + (scale - 1) * drawn / length)
    return scales


def order(seed: int, length: int) -> Tensor:
    """`[length]`: the places in the order they are drawn."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))
