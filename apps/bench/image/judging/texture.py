"""How like rendered settings drawn ones look: a Fréchet distance of patches and power by octave, with their scale.

    TextureBench(compositions).measured(pictures)       # {"distance": 1.9, "scale": 0.2, "power": [1.0, …]}

distance: of drawn pictures to rendered scenes of the same compositions; scale: of two independent sets of rendered
ones, which no model can beat. power: drawn over rendered, octave by octave. Scenes on flat colours take no part.
(`modalities/world/judging/likeness.py`)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polydraft.modalities.world.judging.likeness import Likeness, frechet, octaves
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import Composition, place

SEED = 31
FEWEST = 24  # pictures that say anything about texture


def to_tensor(pictures: Sequence[Image.Image | np.ndarray]) -> Tensor:
    """`[B, 3, 128, 128]` in -1..1."""
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).movedim(-1, 1) / 127.5 - 1


class TextureBench:
    """Rendered scenes of the compositions that stand in settings, twice: rendered once, asked by every method."""

    def __init__(self, compositions: Sequence[Composition]) -> None:
        self.rows = [index for index, wanted in enumerate(compositions) if wanted.background in SETTINGS]
        self.grounds = [compositions[index].background for index in self.rows]
        self.known: Likeness | None = None
        if not self:
            return
        rng = np.random.default_rng(SEED)
        one, other = (
            to_tensor([place(compositions[index], rng).render() for index in self.rows]) for _ in range(2)
        )  # fmt: skip
        self.known, self.power = Likeness.of(one, self.grounds), octaves(one).mean(0)
        self.scale = self.known.distance(other, self.grounds)

    def __bool__(self) -> bool:
        return len(self.rows) >= FEWEST

    def apart(self, first: Sequence[Image.Image | np.ndarray], second: Sequence[Image.Image | np.ndarray]) -> float:
        """How far two sets of drawn pictures are from each other, one a composition, in order; on the same scale."""
        assert self.known is not None, "no scene stands in a setting"
        clouds = (to_tensor([side[index] for index in self.rows]) for side in (first, second))
        return frechet(*(self.known.standardised(cloud, self.grounds) for cloud in clouds))

    def measured(self, pictures: Sequence[Image.Image | np.ndarray]) -> dict[str, Any]:
        """pictures: one a composition, in order; nothing where too few stand in settings."""
        if self.known is None:
            return {}
        drawn = to_tensor([pictures[index] for index in self.rows])
        power = (octaves(drawn).mean(0) / self.power).tolist()
        return {
            "distance": self.known.distance(drawn, self.grounds), "scale": self.scale, "pictures": len(self.rows),
            "power": [round(ratio, 3) for ratio in power],
        }  # fmt: skip
