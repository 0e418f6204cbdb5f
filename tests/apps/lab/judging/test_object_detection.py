"""The matcher over textures: it reads rendered scenes, sharp and worn, and turns down pictures with one mistake."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageDraw

from polydraft.apps.lab.bench.matcher_errors import measure
from polydraft.apps.lab.bench.texture import FEWEST, TextureBench
from polydraft.apps.lab.judging.backgrounds import BackgroundClassifier, degrade_image
from polydraft.apps.lab.judging.mistakes import MISTAKES
from polydraft.apps.lab.judging.object_detection import find_objects, is_clean
from polydraft.apps.lab.judging.world_judge import find_scene, judge_fidelity
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    CANVAS,
    Composition,
    ObjectGroup,
    PlacedObject,
    Scene,
    place_objects,
)
from polydraft.modalities.world.worlds import EVERYTHING, FLAT, TEXTURED

from ....covering import first


@pytest.mark.thorough
@pytest.mark.parametrize("world", first(1, [TEXTURED, EVERYTHING]), ids=lambda world: str(world.name))
def test_matching_few_verdicts_are_wrong(world: object) -> None:
    """`apps.lab.bench.matcher_errors` measures thousands; here a share of more than a few per cent is an error."""
    found = measure(EVERYTHING if world is EVERYTHING else TEXTURED, 11, seed=11)
    assert set(found) == {"right", "soft", *MISTAKES} and found["right"][1] == found["soft"][1] == 11
    assert max(found["right"][0], found["soft"][0]) <= 1
    assert sum(wrong for name, (wrong, _) in found.items() if name in MISTAKES) <= 1


@pytest.mark.parametrize("name", SETTINGS)
def test_find_objects_in_settings_matches_scene(name: str) -> None:
    rng = np.random.default_rng(3)
    grounds = BackgroundClassifier((*BACKGROUNDS, *SETTINGS))
    bare = degrade_image(Scene(name, (), 21).render(), rng)
    assert grounds.classify(bare) == name and find_objects(bare, name) == [] and is_clean(bare, name, [])
    items = (PlacedObject("fox", "large", 12, 20), PlacedObject("gift", "small", 84, 76))
    picture = degrade_image(Scene(name, items, 22).render(), rng)
    objects = find_objects(picture, name)
    assert {thing.item for thing in objects} == set(items) and is_clean(picture, name, objects)


def test_find_scene_half_large_object_is_not_small() -> None:
    """The lower half on grass has the colours of a small object, and almost no foreign pixels around it."""
    whole = Scene("grass", (PlacedObject("cactus", "large", 8, 16),), 5)
    picture, bare = whole.render(), Scene("grass", (), 5).render()
    assert find_scene(EVERYTHING, picture)[1]
    picture[:44] = bare[:44]
    wanted = Composition("grass", (ObjectGroup("cactus"),))
    assert not judge_fidelity(EVERYTHING, picture, wanted).ok
    small = Scene("grass", (PlacedObject("cactus", "small", 20, 40),), 5).render()
    assert judge_fidelity(EVERYTHING, small, wanted).ok


def test_find_objects_thin_objects_and_rare_colours() -> None:
    items = (PlacedObject("bicycle", "small", 40, 92), PlacedObject("grapes", "small", 32, 12))
    for seed in range(4):
        picture = degrade_image(Scene("stone", items, seed).render(), np.random.default_rng(seed))
        assert {thing.item.kind for thing in find_objects(picture, "stone")} == {"bicycle", "grapes"}
    picture = Scene("night", (), 3).render()
    picture[90:124, 30:110] = (134, 106, 166)  # a cloud of stars
    assert not [thing for thing in find_objects(picture, "night") if thing.item.kind == "robot"]


def test_find_scene_foreign_content_is_not_clean() -> None:
    item = PlacedObject("fox", "large", 12, 20)
    picture = Scene("grass", (item,), 4).render()
    assert find_scene(EVERYTHING, picture)[1]
    canvas = Image.fromarray(picture)
    ImageDraw.Draw(canvas).ellipse((88, 88, 104, 104), fill=(200, 40, 160))
    assert not find_scene(EVERYTHING, np.asarray(canvas))[1]
    wanted = Composition("grass", (ObjectGroup("fox"),))
    for cell in (1, 8, 16):
        noise = np.random.default_rng(8).integers(0, 256, (CANVAS // cell, CANVAS // cell, 3))
        verdict = judge_fidelity(EVERYTHING, noise.repeat(cell, 0).repeat(cell, 1).astype(np.uint8), wanted)
        assert not verdict.ok and not (verdict.clean and verdict.background)


def test_find_scene_flat_images_equal_flat_world() -> None:
    rng = np.random.default_rng(6)
    for _ in range(6):
        composition = FLAT.random_composition(rng)
        scene = place_objects(composition, rng)
        picture = degrade_image(scene.render(), rng)
        found, clean = find_scene(EVERYTHING, picture)
        assert (found, clean) == find_scene(FLAT, picture) and judge_fidelity(EVERYTHING, picture, composition).ok
        assert Counter(found.objects) == Counter(scene.objects)


def test_mistakes_change_the_image() -> None:
    rng = np.random.default_rng(7)
    planted = Counter[str]()
    for _ in range(8):
        composition = TEXTURED.random_composition(rng)
        scene = place_objects(composition, rng)
        for name, plant in MISTAKES.items():
            wrong = plant(composition, scene, rng)
            if wrong is not None:
                planted[name] += 1
                assert (np.abs(wrong.astype(int) - scene.render()).max(-1) > 20).sum() > 60
    assert set(planted) == set(MISTAKES)


def test_texture_bench_reports_distance_with_scale() -> None:
    rng = np.random.default_rng(9)
    asked = [TEXTURED.random_composition(rng) for _ in range(FEWEST)] + [FLAT.random_composition(rng)]
    bench = TextureBench(asked)
    pictures = [place_objects(wanted, rng).render() for wanted in asked]
    soft = [np.asarray(Image.fromarray(picture).reduce(2).resize((CANVAS, CANVAS))) for picture in pictures]
    good, washed = bench.measure(pictures), bench.measure(soft)
    assert bench and good["pictures"] == FEWEST and good["distance"] < 2.5 * good["scale"]
    assert washed["distance"] > 2 * good["distance"] and washed["power"][-1] < 0.5 < min(good["power"])
    assert not TextureBench(asked[-1:]) and TextureBench(asked[-1:]).measure(pictures[-1:]) == {}
