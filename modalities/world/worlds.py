"""The emoji worlds: which grounds scenes stand on, how captions say it, and how pictures are judged.

    world = WORLDS["settings"]
    composition = world.composition(rng, held_out=True)
    world.fidelity(picture, composition).ok

`flat` is eight flat colours; `settings` has the settings beside them, and `textured` has settings alone. A model knows
the words of one of them and says which in its manifest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polydraft.modalities.world.judging import matcher, sightings
from polydraft.modalities.world.judging.grounds import Grounds
from polydraft.modalities.world.judging.matcher import Verdict
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import BACKGROUNDS, Composition, Scene, random_composition
from polydraft.modalities.world.words import captions, parsing
from polydraft.modalities.world.words.parsing import Parsed
from polydraft.modalities.world.words.prompts import Understood, understand


@dataclass(frozen=True)
class World:
    """A name, and the colours and settings that there are."""

    name: str
    backgrounds: tuple[str, ...]

    @property
    def settings(self) -> tuple[str, ...]:
        return tuple(name for name in self.backgrounds if name in SETTINGS)

    def composition(self, rng: np.random.Generator, held_out: bool = False) -> Composition:
        """A composition of this world, from the training part or from the held-out one."""
        return random_composition(rng, held_out, self.backgrounds)

    def vocabulary(self) -> list[str]:
        """Every word of its captions, in a fixed order that begins with the flat world's."""
        return captions.vocabulary(self.settings)

    def wordings(self) -> dict[str, list[str]]:
        """What can be drawn, by category, in the words of a prompt."""
        return captions.wordings(self.settings)

    def normalise(self, caption: str) -> tuple[list[str], list[str]]:
        """Words that are known, in the grammar's spelling, and those that are not."""
        return parsing.normalise(caption, self.settings)

    def understand(self, prompt: str) -> Understood:
        """Return the caption that is drawn of a prompt, and what of it is not drawn."""
        return understand(prompt, self.backgrounds)

    def parse(self, caption: str) -> Parsed:
        """What a freely written caption asks for."""
        return parsing.parse(caption, self.settings)

    def find(self, picture: NDArray[np.uint8]) -> tuple[Scene, bool]:
        """The scene in a `[128, 128, 3]` uint8 picture, and whether there is nothing else, and all of it whole."""
        ground = Grounds(self.backgrounds).name(picture) if self.settings else None
        if ground is None or ground in BACKGROUNDS:
            scene = matcher.find(picture)
            return scene, matcher.is_clean(picture, scene)
        things = sightings.find(picture, ground)
        return sightings.scene_of(ground, things), sightings.is_clean(picture, ground, things)

    def fidelity(self, picture: NDArray[np.uint8], composition: Composition) -> Verdict:
        """Whether a picture shows `composition`, all of it and nothing else."""
        scene, clean = self.find(picture)
        return matcher.judge(scene, composition, clean)


FLAT = World("flat", tuple(BACKGROUNDS))
TEXTURED = World("textured", tuple(SETTINGS))
EVERYTHING = World("settings", (*BACKGROUNDS, *SETTINGS))
WORLDS = {world.name: world for world in (FLAT, TEXTURED, EVERYTHING)}
