"""Gaussian noise of MAR's chains: a pure function of seed, place, draw and stream, on any device.

x = normals(seeds, places, draw=0, size=16)      # the first state of a token; draw s + 1 follows step s

So a row's picture does not depend on what else is in its batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polydraft.core.noise import uniform


def normals(seeds: Tensor, places: Tensor, draw: int, size: int, stream: int = 0) -> Tensor:
    """`[N, size]` fp32, unit variance; tokens at `places` `[N]` of rows with `seeds` `[N]` (Box and Muller 1958)."""
    pairs = torch.arange(size, device=seeds.device)[None] * 2
    streams, draws = (torch.tensor([key], device=seeds.device) for key in (stream, draw))
    first, second = (uniform(seeds[:, None], places[:, None], streams, draws, pairs + half) for half in range(2))
    return ((-2 * first.log()).sqrt() * (2 * math.pi * second).cos()).float()
