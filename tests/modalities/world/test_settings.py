"""Scenes in settings: endless pictures of one caption, the flat world as it was, captions that read back."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.judging.matcher import judge
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.painting.staging import SHRUNK, TURNS, Pose, cast, posed, turned
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    CANVAS,
    GRID,
    Composition,
    Group,
    Placed,
    Scene,
    place,
    random_composition,
)
from polydraft.modalities.world.words.captions import describe, vocabulary
from polydraft.modalities.world.words.parsing import NAMING, parse
from polydraft.modalities.world.worlds import EVERYTHING, FLAT, TEXTURED, WORLDS

ITEMS = (Placed("cat", "large", 4, 8), Placed("bicycle", "small", 88, 84))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_seed_fixes_a_picture_and_another_changes_ground_and_things(name: str) -> None:
    one, again, other = (Scene(name, ITEMS, seed).render() for seed in (1, 1, 2))
    assert one.shape == (CANVAS, CANVAS, 3) and one.dtype == np.uint8
    assert (one == again).all()
    changed = np.abs(one.astype(int) - other).sum(-1) > 6
    assert changed.mean() > 0.5 and changed[24:48, 24:48].mean() > 0.2  # the cat is turned and lit
    assert one.astype(float).std((0, 1)).max() > 4  # no flat colour


def test_things_stand_where_they_are_said_to_and_shadows_only_darken() -> None:
    for name in SETTINGS:
        bare, full = (Scene(name, items, 5).render().astype(int) for items in ((), ITEMS))
        near = np.zeros((CANVAS, CANVAS), bool)
        for item in ITEMS:
            near[max(item.y - 4, 0) : item.y + item.side + 4, max(item.x - 4, 0) : item.x + item.side + 4] = True
        assert (np.abs(full - bare).sum(-1)[near] > 30).mean() > 0.3
        assert (full - bare)[~near].max() <= 1

        picture, ground = SETTINGS[name].paint(np.random.default_rng(0))
        lit = picture.copy()
        rng = np.random.default_rng(1)
        cast(picture, ground, posed(ITEMS, 1.0, rng), SETTINGS[name], 1.0)
        assert picture.min() >= lit.min() * 0.5 and (picture <= lit + 1e-6).all()
        assert (picture < lit - 0.03).any() == (name not in ("sky", "night", "sunset", "water"))


def test_the_flat_world_is_what_models_were_trained_on() -> None:
    rng, sums = np.random.default_rng(4), hashlib.sha256()
    for index in range(40):
        composition = random_composition(rng, held_out=index % 2 == 1)
        scene = place(composition, rng)
        sums.update(describe(composition, rng).encode() + scene.render().tobytes())
    assert sums.hexdigest() == "fd3ecb72565067fab3ef976aea2ab6575fc9c730d4c7f2a933796e6acf853bce"
    one, other = np.random.default_rng(9), np.random.default_rng(9)
    assert [FLAT.composition(one) for _ in range(20)] == [random_composition(other) for _ in range(20)]
    words = FLAT.vocabulary()
    assert words == vocabulary() and EVERYTHING.vocabulary()[: len(words)] == words and "grass" not in words


def test_a_small_thing_is_as_sharp_as_its_raster_and_turns_about_its_middle() -> None:
    for size in ("large", "small"):
        for kind in ("ball", "gift", "cat"):
            whole = turned(kind, "large", 0.0)[..., 3]  # small ones are turned as the large raster
            covers = [whole, *(turned(kind, size, turn)[..., 3] for turn in (-5.0, 5.0))]
            middle = [
                (np.indices(alpha.shape) * alpha).sum((1, 2)) / alpha.sum() - (len(alpha) - 1) / 2 for alpha in covers
            ]
            # the glyph's own middle lies off the box's by up to a few pixels, and turns about it
            shrunk = SHRUNK * SIZES[size] / SIZES["large"]
            assert np.abs(middle[1] + middle[2] - 2 * shrunk * middle[0]).max() < 0.2
    east, west = (Pose.random(np.random.default_rng(0), sun) for sun in (1.0, -1.0))
    assert east.slope[0] > 0 > west.slope[0] and east.turn == west.turn


def test_a_turned_thing_stays_within_its_box() -> None:
    for kind in KINDS:
        whole = turned(kind, "large", 0.0)[..., 3].sum()
        for turn in TURNS:
            assert abs(turned(kind, "large", turn)[..., 3].sum() / whole / (SHRUNK**2 if turn else 1) - 1) < 0.02


@settings(max_examples=200)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_captions_of_settings_read_back_and_scenes_fit_them(seed: int, held_out: bool) -> None:
    rng = np.random.default_rng(seed)
    composition = TEXTURED.composition(rng, held_out)
    caption = describe(composition, rng)
    assert composition.held_out == held_out and EVERYTHING.parse(caption).composition == composition
    assert EVERYTHING.parse(caption).ignored == () and EVERYTHING.normalise(caption) == (caption.split(), [])
    scene = place(composition, rng)
    assert judge(scene, composition).ok and all(item.x % GRID == item.y % GRID == 0 for item in scene.objects)


@pytest.mark.parametrize(
    ("caption", "setting", "kinds"),
    [
        ("two stars under the stars", "night", ["star"]),
        ("A cat under a dog under the water!", "water", ["cat", "dog"]),
        ("a cute cat sitting on the green grass", "grass", ["cat"]),
        ("a fish in the ocean", "sea", ["fish"]),
        ("a balloon over a house over the calm sea", "sea", ["balloon", "house"]),
        ("one cactus, in the hot desert", "sand", ["cactus"]),
        ("a moon in a starry night sky", "night", ["moon"]),
        ("a ball in front of the old brick wall", "brick", ["ball"]),
        ("at night a small ghost above a house", "night", ["ghost", "house"]),
    ],
)
def test_prompts_as_people_write_them(caption: str, setting: str, kinds: list[str]) -> None:
    composition = EVERYTHING.parse(caption).composition
    assert composition is not None and composition.background == setting
    assert [group.kind for group in composition.groups] == kinds


def test_what_stays_open_has_no_composition_and_flat_captions_read_as_before() -> None:
    assert EVERYTHING.parse("a cat").composition is None
    assert EVERYTHING.parse("a cat on a blue background in the snow").composition is None
    rng = np.random.default_rng(2)
    for _ in range(100):
        caption = describe(random_composition(rng), rng)
        assert EVERYTHING.parse(caption) == parse(caption)
    assert FLAT.parse("a cat in the snow").composition is None
    assert "snow" in FLAT.normalise("a cat in the snow")[1]


def test_a_tenth_is_held_out_and_every_wording_names_its_setting_alone() -> None:
    pairs = [(Group(first), Group(second)) for first in KINDS for second in KINDS]
    share = np.mean([Composition(name, pair, "left").held_out for name in SETTINGS for pair in pairs])
    assert 0.095 < share < 0.105
    wordings = [wording for setting in SETTINGS.values() for wording in setting.wordings]
    assert len(set(wordings)) == len(wordings) and set(NAMING.values()) == set(SETTINGS)
    assert not set(SETTINGS) & set(BACKGROUNDS) and set(WORLDS) == {"flat", "textured", "settings"}
