"""Randomness of MAR's chains: a pure function of seed, place, draw and stream, on any device.

    dice = Dice(seeds, places, stream=0)
    x = dice.normals(0, 16)          # the first state of every token; draw s + 1 follows step s

So a row's picture does not depend on what else is in its batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.noise import normals, uniform

Draw = int | Tensor  # one for all tokens, or `[N]`


@dataclass(frozen=True)
class Dice:
    """Of tokens at `places` `[N]` of rows with `seeds` `[N]`. stream: draws of two streams have nothing in common."""

    seeds: Tensor
    places: Tensor
    stream: int = 0

    def of(self, tokens: Tensor) -> Dice:
        """Of those tokens alone, indices or mask."""
        return Dice(self.seeds[tokens], self.places[tokens], self.stream)

    def uniforms(self, draw: Draw, number: int = 0) -> Tensor:
        """`[N]` float64 in (0, 1); number: which of a draw."""
        return self.units(draw, torch.tensor([number], device=self.seeds.device))[:, 0]

    def normals(self, draw: Draw, size: int) -> Tensor:
        """`[N, size]` fp32 of unit variance."""
        pairs = 2 * torch.arange(size, device=self.seeds.device)
        first, second = self.units(draw, pairs), self.units(draw, pairs + 1)
        return normals(first, second).float()

    def units(self, draw: Draw, numbers: Tensor) -> Tensor:
        """`[N, numbers]` float64 in (0, 1)."""
        device = self.seeds.device
        draws = torch.as_tensor(draw, device=device).expand(len(self.seeds))[:, None]
        stream = torch.tensor(self.stream, device=device)
        return uniform(self.seeds[:, None], self.places[:, None], stream, draws, numbers)
