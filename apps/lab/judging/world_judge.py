"""Judge images of an emoji world: find the scene in them and compare it with a composition.

world = WORLDS["settings"]
composition = world.random_composition(rng, held_out=True)
judge_fidelity(world, image, composition).ok
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polydraft.apps.lab.judging import matcher, object_detection
from polydraft.apps.lab.judging.backgrounds import BackgroundClassifier
from polydraft.apps.lab.judging.matcher import FidelityResult
from polydraft.modalities.world.scene import BACKGROUNDS, Composition, Scene
from polydraft.modalities.world.worlds import World


def find_scene(world: World, image: NDArray[np.uint8]) -> tuple[Scene, bool]:
    """Find the scene in an image of a world.

    Args:
        world (World): its colours and settings are the backgrounds that are looked for.
        image (NDArray): [128, 128, 3] uint8.

    Returns:
        tuple[Scene, bool]: the scene, and whether its objects are whole and the image shows nothing else.
    """
    background = BackgroundClassifier(world.backgrounds).classify(image) if world.settings else None
    if background is None or background in BACKGROUNDS:
        scene = matcher.match_scene(image)
        return scene, matcher.is_clean(image, scene)
    things = object_detection.find_objects(image, background)
    return object_detection.to_scene(background, things), object_detection.is_clean(image, background, things)


def judge_fidelity(world: World, image: NDArray[np.uint8], composition: Composition) -> FidelityResult:
    """Judge whether an image [128, 128, 3] shows all of `composition` and nothing else."""
    scene, is_clean = find_scene(world, image)
    return matcher.compare_scene(scene, composition, is_clean)
