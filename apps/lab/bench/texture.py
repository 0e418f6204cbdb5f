"""Texture of generated settings: a Fréchet distance of patches to rendered scenes, and power by octave.

    TextureBench(compositions).measure(images)       # {"distance": 1.9, "scale": 0.2, "power": [1.0, …]}

"distance" is that of generated images to rendered scenes of the same compositions; "scale" that of two independent sets
of rendered scenes, a lower bound; "power" is generated over rendered, by octave. Scenes on flat colours are ignored
(`apps/lab/judging/texture_statistics.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polydraft.apps.lab.judging.texture_statistics import TextureStatistics, frechet_distance, octave_power
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import Composition, place_objects

SEED = 31
FEWEST = 24  # smallest number of images for texture statistics


def to_tensor(pictures: Sequence[Image.Image | np.ndarray]) -> Tensor:
    """Stack images to [B, 3, 128, 128] in -1..1."""
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).movedim(-1, 1) / 127.5 - 1


class TextureBench:
    """Two sets of rendered scenes of the compositions in settings, which all methods are compared with."""

    def __init__(self, compositions: Sequence[Composition]) -> None:
        self.rows: list[int]
        self.rows = [index for index, composition in enumerate(compositions) if composition.background in SETTINGS]
        self.grounds: list[str] = [compositions[index].background for index in self.rows]
        self.reference: TextureStatistics | None = None
        if not self:
            return
        rng = np.random.default_rng(SEED)
        one, other = (
            to_tensor([place_objects(compositions[index], rng).render() for index in self.rows]) for _ in range(2)
        )  # fmt: skip
        self.reference = TextureStatistics.fit(one, self.grounds)
        self.power: Tensor = octave_power(one).mean(0)
        self.scale: float = self.reference.distance(other, self.grounds)

    def __bool__(self) -> bool:
        return len(self.rows) >= FEWEST

    def distance_between(
        self, first: Sequence[Image.Image | np.ndarray], second: Sequence[Image.Image | np.ndarray]
    ) -> float:
        """Return the distance of two sets of generated images, one per composition in order, on the same scale."""
        assert self.reference is not None, "no scene stands in a setting"
        clouds = (to_tensor([side[index] for index in self.rows]) for side in (first, second))
        return frechet_distance(*(self.reference.standardised_features(cloud, self.grounds) for cloud in clouds))

    def measure(self, pictures: Sequence[Image.Image | np.ndarray]) -> dict[str, Any]:
        """Measure images, one per composition in order; return nothing where no composition has a setting."""
        if self.reference is None:
            return {}
        generated = to_tensor([pictures[index] for index in self.rows])
        power = (octave_power(generated).mean(0) / self.power).tolist()
        return {
            "distance": self.reference.distance(generated, self.grounds), "scale": self.scale,
            "pictures": len(self.rows), "power": [round(ratio, 3) for ratio in power],
        }  # fmt: skip
