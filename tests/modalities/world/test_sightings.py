"""The matcher over textures: it reads rendered scenes, sharp and worn, and turns down pictures with one mistake."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageDraw

from polydraft.apps.bench.image.judging.matching import measure
from polydraft.apps.bench.image.judging.texture import FEWEST, TextureBench
from polydraft.modalities.world.judging.grounds import Grounds, worn
from polydraft.modalities.world.judging.mistakes import MISTAKES
from polydraft.modalities.world.judging.sightings import find, is_clean
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import BACKGROUNDS, CANVAS, Composition, Group, Placed, Scene, place
from polydraft.modalities.world.worlds import EVERYTHING, FLAT, TEXTURED

from ...covering import first


@pytest.mark.parametrize("world", first(1, [TEXTURED, EVERYTHING]), ids=lambda world: str(world.name))
def test_few_verdicts_are_wrong(world: object) -> None:
    """`apps.bench.image.judging.matching` measures thousands; here a share of more than a few per cent is an error."""
    found = measure(EVERYTHING if world is EVERYTHING else TEXTURED, 11, seed=11)
    assert set(found) == {"right", "soft", *MISTAKES} and found["right"][1] == found["soft"][1] == 11
    assert max(found["right"][0], found["soft"][0]) <= 1
    assert sum(wrong for name, (wrong, _) in found.items() if name in MISTAKES) <= 1


@pytest.mark.parametrize("name", SETTINGS)
def test_a_bare_setting_has_no_things_and_what_stands_in_it_is_found_where_it_is(name: str) -> None:
    rng = np.random.default_rng(3)
    grounds = Grounds((*BACKGROUNDS, *SETTINGS))
    bare = worn(Scene(name, (), 21).render(), rng)
    assert grounds.name(bare) == name and find(bare, name) == [] and is_clean(bare, name, [])
    items = (Placed("fox", "large", 12, 20), Placed("gift", "small", 84, 76))
    picture = worn(Scene(name, items, 22).render(), rng)
    seen = find(picture, name)
    assert {thing.item for thing in seen} == set(items) and is_clean(picture, name, seen)


def test_what_remains_of_a_large_thing_is_no_small_one() -> None:
    """Its lower half on grass has the colours of a small one, and next to nothing around it is strange."""
    whole = Scene("grass", (Placed("cactus", "large", 8, 16),), 5)
    picture, bare = whole.render(), Scene("grass", (), 5).render()
    assert EVERYTHING.find(picture)[1]
    picture[:44] = bare[:44]
    wanted = Composition("grass", (Group("cactus"),))
    assert not EVERYTHING.fidelity(picture, wanted).ok
    small = Scene("grass", (Placed("cactus", "small", 20, 40),), 5).render()
    assert EVERYTHING.fidelity(small, wanted).ok


def test_thin_things_are_seen_and_rare_colours_are_no_things() -> None:
    items = (Placed("bicycle", "small", 40, 92), Placed("grapes", "small", 32, 12))
    for seed in range(4):
        picture = worn(Scene("stone", items, seed).render(), np.random.default_rng(seed))
        assert {thing.item.kind for thing in find(picture, "stone")} == {"bicycle", "grapes"}
    picture = Scene("night", (), 3).render()
    picture[90:124, 30:110] = (134, 106, 166)  # a cloud of stars
    assert not [thing for thing in find(picture, "night") if thing.item.kind == "robot"]


def test_strange_patches_and_pictures_from_elsewhere_are_not_clean() -> None:
    item = Placed("fox", "large", 12, 20)
    picture = Scene("grass", (item,), 4).render()
    assert EVERYTHING.find(picture)[1]
    canvas = Image.fromarray(picture)
    ImageDraw.Draw(canvas).ellipse((88, 88, 104, 104), fill=(200, 40, 160))
    assert not EVERYTHING.find(np.asarray(canvas))[1]
    wanted = Composition("grass", (Group("fox"),))
    for cell in (1, 8, 16):
        noise = np.random.default_rng(8).integers(0, 256, (CANVAS // cell, CANVAS // cell, 3))
        verdict = EVERYTHING.fidelity(noise.repeat(cell, 0).repeat(cell, 1).astype(np.uint8), wanted)
        assert not verdict.ok and not (verdict.clean and verdict.background)


def test_flat_pictures_are_judged_as_ever() -> None:
    rng = np.random.default_rng(6)
    for _ in range(6):
        composition = FLAT.composition(rng)
        scene = place(composition, rng)
        picture = worn(scene.render(), rng)
        found, clean = EVERYTHING.find(picture)
        assert (found, clean) == FLAT.find(picture) and EVERYTHING.fidelity(picture, composition).ok
        assert Counter(found.objects) == Counter(scene.objects)


def test_every_mistake_changes_the_picture() -> None:
    rng = np.random.default_rng(7)
    planted = Counter[str]()
    for _ in range(8):
        composition = TEXTURED.composition(rng)
        scene = place(composition, rng)
        for name, plant in MISTAKES.items():
            wrong = plant(composition, scene, rng)
            if wrong is not None:
                planted[name] += 1
                assert (np.abs(wrong.astype(int) - scene.render()).max(-1) > 20).sum() > 60
    assert set(planted) == set(MISTAKES)


def test_texture_of_drawn_pictures_is_told_with_its_scale() -> None:
    rng = np.random.default_rng(9)
    asked = [TEXTURED.composition(rng) for _ in range(FEWEST)] + [FLAT.composition(rng)]
    bench = TextureBench(asked)
    pictures = [place(wanted, rng).render() for wanted in asked]
    soft = [np.asarray(Image.fromarray(picture).reduce(2).resize((CANVAS, CANVAS))) for picture in pictures]
    good, washed = bench.measured(pictures), bench.measured(soft)
    assert bench and good["pictures"] == FEWEST and good["distance"] < 2.5 * good["scale"]
    assert washed["distance"] > 2 * good["distance"] and washed["power"][-1] < 0.5 < min(good["power"])
    assert not TextureBench(asked[-1:]) and TextureBench(asked[-1:]).measured(pictures[-1:]) == {}
