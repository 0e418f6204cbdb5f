"""Which places MAR fills when, and how strongly each set is guided; all of it is known before anything is drawn.

    sets = Sets.of(length=256, iterations=64)         # 1 … 7 tokens, 256 in all
    places = sets.places(order(seed, 256))            # [64, 7], 256 where a set has fewer
    scales = 1 + (2.9 - 1) * sets.progress

Sets grow as a cosine says (Chang et al. 2022, "MaskGIT", section 3.3), guidance grows with what is drawn (Chang et al.
2023, "Muse", section 2.7).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True)
class Sets:
    """The sizes of a picture's sets, in their order."""

    sizes: tuple[int, ...]

    @staticmethod
    def of(length: int, iterations: int) -> Sets:
        """Raises InvalidArgument."""
        return Sets(tuple(set_sizes(length, iterations)))

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def length(self) -> int:
        """Tokens in all."""
        return sum(self.sizes)

    @property
    def widest(self) -> int:
        return max(self.sizes)

    @cached_property
    def progress(self) -> Tensor:
        """`[sets]`: how much is drawn once the set is, which is how far its guidance has come.

        The last set is guided as if one token were left, as published.
        """
        return torch.tensor(self.sizes).cumsum(0).clamp(max=self.length - 1) / self.length

    def places(self, order: Tensor) -> Tensor:
        """`[sets, widest]`: the places that each set fills, of their order `[T]`; T where it has fewer."""
        sizes = torch.tensor(self.sizes)
        slots = torch.arange(self.widest).expand(len(self), -1)
        made = torch.full((len(self), self.widest), self.length)
        made[slots < sizes[:, None]] = order
        return made


def order(seed: int, length: int) -> Tensor:
    """`[length]`: the places in the order they are drawn."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))


def standing(places: Tensor, length: int) -> Tensor:
    """`[…, T]`: where every place stands among the sets' tokens `[…, sets · widest]`, of `places` (see `Sets`)."""
    return places.flatten(-2).argsort(-1)[..., :length]
