"""Scenes in settings: painted backgrounds, the unchanged flat variant, and captions that round-trip."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.apps.lab.judging.matcher import compare_scene
from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.painting.staging import (
    ANGLES,
    ROTATION_SCALE,
    Pose,
    cast_shadows,
    pose_items,
    rotated_glyph,
)
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    CANVAS,
    GRID,
    Composition,
    ObjectGroup,
    PlacedObject,
    Scene,
    place_objects,
    random_composition,
)
from polydraft.modalities.world.words.captions import caption_vocabulary, write_caption
from polydraft.modalities.world.words.parsing import SETTING_KEYWORDS, parse_caption
from polydraft.modalities.world.worlds import EVERYTHING, FLAT, TEXTURED, WORLDS

ITEMS = (PlacedObject("cat", "large", 4, 8), PlacedObject("bicycle", "small", 88, 84))


@pytest.mark.parametrize("name", SETTINGS)
def test_seed_determines_background_and_poses(name: str) -> None:
    one, again, other = (Scene(name, ITEMS, seed).render() for seed in (1, 1, 2))
    assert one.shape == (CANVAS, CANVAS, 3) and one.dtype == np.uint8
    assert (one == again).all()
    changed = np.abs(one.astype(int) - other).sum(-1) > 6
    assert changed.mean() > 0.5 and changed[24:48, 24:48].mean() > 0.2  # the cat is turned and lit
    assert one.astype(float).std((0, 1)).max() > 4  # no flat colour


def test_objects_are_at_positions_and_shadows_only_darken() -> None:
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
        cast_shadows(picture, ground, pose_items(ITEMS, 1.0, rng), SETTINGS[name], 1.0)
        assert picture.min() >= lit.min() * 0.5 and (picture <= lit + 1e-6).all()
        assert (picture < lit - 0.03).any() == (name not in ("sky", "night", "sunset", "water"))


def test_flat_world_is_unchanged() -> None:
    rng, sums = np.random.default_rng(4), hashlib.sha256()
    for index in range(40):
        composition = random_composition(rng, held_out=index % 2 == 1)
        scene = place_objects(composition, rng)
        sums.update(write_caption(composition, rng).encode() + scene.render().tobytes())
    assert sums.hexdigest() == "fd3ecb72565067fab3ef976aea2ab6575fc9c730d4c7f2a933796e6acf853bce"
    one, other = np.random.default_rng(9), np.random.default_rng(9)
    assert [FLAT.random_composition(one) for _ in range(20)] == [random_composition(other) for _ in range(20)]
    words = FLAT.vocabulary()
    assert words == caption_vocabulary() and EVERYTHING.vocabulary()[: len(words)] == words and "grass" not in words


def test_small_glyph_rotates_sharply_about_its_middle() -> None:
    for size in ("large", "small"):
        for kind in ("ball", "gift", "cat"):
            whole = rotated_glyph(kind, "large", 0.0)[..., 3]  # small ones are turned as the large raster
            covers = [whole, *(rotated_glyph(kind, size, turn)[..., 3] for turn in (-5.0, 5.0))]
            middle = [
                (np.indices(alpha.shape) * alpha).sum((1, 2)) / alpha.sum() - (len(alpha) - 1) / 2 for alpha in covers
            ]
            # the glyph's own middle lies off the box's by up to a few pixels, and turns about it
            shrunk = ROTATION_SCALE * GLYPH_SIZES[size] / GLYPH_SIZES["large"]
            assert np.abs(middle[1] + middle[2] - 2 * shrunk * middle[0]).max() < 0.2
    east, west = (Pose.random(np.random.default_rng(0), sun) for sun in (1.0, -1.0))
    assert east.slope[0] > 0 > west.slope[0] and east.angle == west.angle


def test_rotated_object_stays_within_its_box() -> None:
    for kind in KINDS:
        whole = rotated_glyph(kind, "large", 0.0)[..., 3].sum()
        for turn in ANGLES:
            share = rotated_glyph(kind, "large", turn)[..., 3].sum() / whole
            assert abs(share / (ROTATION_SCALE**2 if turn else 1) - 1) < 0.02


@settings(max_examples=200)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_setting_captions_round_trip_and_scenes_fit(seed: int, held_out: bool) -> None:
    rng = np.random.default_rng(seed)
    composition = TEXTURED.random_composition(rng, held_out)
    caption = write_caption(composition, rng)
    assert composition.is_held_out == held_out and EVERYTHING.parse(caption).composition == composition
    assert EVERYTHING.parse(caption).ignored == () and EVERYTHING.normalise(caption) == (caption.split(), [])
    scene = place_objects(composition, rng)
    assert compare_scene(scene, composition).ok and all(item.x % GRID == item.y % GRID == 0 for item in scene.objects)


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
def test_free_setting_prompts_are_parsed(caption: str, setting: str, kinds: list[str]) -> None:
    composition = EVERYTHING.parse(caption).composition
    assert composition is not None and composition.background == setting
    assert [group.kind for group in composition.groups] == kinds


def test_open_captions_have_no_composition() -> None:
    assert EVERYTHING.parse("a cat").composition is None
    assert EVERYTHING.parse("a cat on a blue background in the snow").composition is None
    rng = np.random.default_rng(2)
    for _ in range(100):
        caption = write_caption(random_composition(rng), rng)
        assert EVERYTHING.parse(caption) == parse_caption(caption)
    assert FLAT.parse("a cat in the snow").composition is None
    assert "snow" in FLAT.normalise("a cat in the snow")[1]


def test_held_out_share_and_setting_wordings_are_unambiguous() -> None:
    pairs = [(ObjectGroup(first), ObjectGroup(second)) for first in KINDS for second in KINDS]
    share = np.mean([Composition(name, pair, "left").is_held_out for name in SETTINGS for pair in pairs])
    assert 0.095 < share < 0.105
    wordings = [wording for setting in SETTINGS.values() for wording in setting.wordings]
    assert len(set(wordings)) == len(wordings) and set(SETTING_KEYWORDS.values()) == set(SETTINGS)
    assert not set(SETTINGS) & set(BACKGROUNDS) and set(WORLDS) == {"flat", "textured", "settings"}
