"""Captions to measure on: compositions no model was ever trained on, the same for everyone.

captions, compositions = held_out(200)
"""

from __future__ import annotations

import numpy as np

from polydraft.modalities.world.captions import describe
from polydraft.modalities.world.scene import Composition, random_composition

SEED = 2024


def held_out(count: int) -> tuple[list[str], list[Composition]]:
    """The first `count` of one endless list."""
    rng = np.random.default_rng(SEED)
    compositions, captions = [], []
    for _ in range(count):
        compositions.append(random_composition(rng, held_out=True))
        captions.append(describe(compositions[-1], rng))
    return captions, compositions
