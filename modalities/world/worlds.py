"""Variants of the emoji dataset, which differ in their backgrounds.

    world = WORLDS["settings"]
    composition = world.random_composition(rng, held_out=True)

`flat` has eight flat colours, `textured` has settings only, and `settings` has both. A model knows the words of one
variant, which its manifest names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import BACKGROUNDS, Composition, random_composition
from polydraft.modalities.world.words import captions, parsing
from polydraft.modalities.world.words.parsing import ParsedCaption
from polydraft.modalities.world.words.prompts import RewrittenPrompt, rewrite_prompt


@dataclass(frozen=True)
class World:
    """Variant of the emoji dataset."""

    name: str
    backgrounds: tuple[str, ...]  # colours and settings

    @property
    def settings(self) -> tuple[str, ...]:
        """Return the backgrounds that are settings."""
        return tuple(name for name in self.backgrounds if name in SETTINGS)

    def random_composition(self, rng: np.random.Generator, held_out: bool = False) -> Composition:
        """Sample a composition from the training part or from the held-out part."""
        return random_composition(rng, held_out, self.backgrounds)

    def vocabulary(self) -> list[str]:
        """Return every word of its captions in a fixed order, which begins with the words of the flat variant."""
        return captions.caption_vocabulary(self.settings)

    def prompt_choices(self) -> dict[str, list[str]]:
        """Return what prompts may ask for, by category, in the words of a prompt."""
        return captions.prompt_choices(self.settings)

    def normalise(self, caption: str) -> tuple[list[str], list[str]]:
        """Return the words that are known, in the spelling of the grammar, and the words that are not."""
        return parsing.normalise_caption(caption, self.settings)

    def rewrite_prompt(self, prompt: str) -> RewrittenPrompt:
        """Rewrite a free prompt as a caption of the grammar."""
        return rewrite_prompt(prompt, self.backgrounds)

    def parse(self, caption: str) -> ParsedCaption:
        """Parse a freely written caption."""
        return parsing.parse_caption(caption, self.settings)


FLAT = World("flat", tuple(BACKGROUNDS))
TEXTURED = World("textured", tuple(SETTINGS))
EVERYTHING = World("settings", (*BACKGROUNDS, *SETTINGS))
WORLDS = {world.name: world for world in (FLAT, TEXTURED, EVERYTHING)}
