"""Pictures to ask about: a few scenes of the emoji world, drawn when first needed."""

from __future__ import annotations

from functools import cache

import numpy as np
from PIL import Image

from polydraft.apps.ui.views.picture import data_url
from polydraft.modalities.world.scene import Composition, ObjectGroup, place_objects

SCENES: dict[str, Composition] = {
    "two frogs on blue": Composition("blue", (ObjectGroup("frog", 2, "large"),)),
    "a panda to the left of a rocket on yellow": Composition(
        "yellow", (ObjectGroup("panda"), ObjectGroup("rocket")), "left"
    ),
    "three stars on navy": Composition("navy", (ObjectGroup("star", 3, "small"),)),
    "a cake below two balloons on pink": Composition("pink", (ObjectGroup("cake"), ObjectGroup("balloon", 2)), "below"),
}


@cache
def scene(name: str) -> Image.Image:
    """Return the image of an example scene, the same each time."""
    seed = list(SCENES).index(name)
    return Image.fromarray(place_objects(SCENES[name], np.random.default_rng(seed)).render())


def thumbnails() -> str:
    """Style rules that show each scene on the button of its number."""
    return "\n".join(
        f'.gradio-container .scene-{index} {{ background-image: url("{data_url(scene(name))}"); }}'
        for index, name in enumerate(SCENES)
    )
