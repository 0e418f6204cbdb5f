"""Scenes fit their compositions, nothing overlaps, and the held-out tenth stays held out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polydraft.apps.lab.judging.matcher import compare_scene
from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS, load_sheet
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    CANVAS,
    GRID,
    Composition,
    ObjectGroup,
    PlacedObject,
    boxes_overlap,
    is_in_relation,
    place_objects,
    random_composition,
)

seeds = st.integers(0, 2**32 - 1)


@given(seeds, st.booleans())
def test_placed_scenes_satisfy_their_composition(seed: int, held_out: bool) -> None:
    rng = np.random.default_rng(seed)
    composition = random_composition(rng, held_out)
    assert composition.is_held_out == held_out
    scene = place_objects(composition, rng)
    assert compare_scene(scene, composition).ok
    for index, item in enumerate(scene.objects):
        assert item.x % GRID == item.y % GRID == 0
        assert min(item.x, item.y) >= 0 and max(item.x, item.y) + item.side <= CANVAS
        assert not any(boxes_overlap(item, other) for other in scene.objects[:index])


@given(seeds)
def test_relations_mirror_and_exclude_each_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (
        PlacedObject("cat", ("large", "small")[rng.integers(2)], *(rng.integers(10, size=2) * GRID)) for _ in range(2)
    )
    for relation, mirror in (("left", "right"), ("above", "below")):
        assert is_in_relation(a, relation, b) == is_in_relation(b, mirror, a)
        assert not (is_in_relation(a, relation, b) and is_in_relation(a, mirror, b))
    relations = ("left", "right", "above", "below")
    assert boxes_overlap(a, b) != any(is_in_relation(a, relation, b) for relation in relations)


def test_held_out_is_a_tenth_regardless_of_size() -> None:
    compositions = [
        Composition(background, (ObjectGroup(first), ObjectGroup(second)), "left")
        for background in BACKGROUNDS
        for first in KINDS
        for second in KINDS
    ]
    assert 0.095 < np.mean([composition.is_held_out for composition in compositions]) < 0.105
    for composition in compositions[:500]:
        sized = tuple(ObjectGroup(group.kind, group.count, "small") for group in composition.groups)
        assert Composition(composition.background, sized, "left").is_held_out == composition.is_held_out
    # known members: a change of the split would leak held-out compositions into training
    known = Composition("yellow", (ObjectGroup("panda"), ObjectGroup("rocket")), "left")
    assert [known.is_held_out, Composition("blue", (ObjectGroup("frog", 2),)).is_held_out] == [False, True]


def test_scenes_are_reproducible_by_seed() -> None:
    for seed in range(20):
        one, two = (np.random.default_rng(seed) for _ in range(2))
        assert place_objects(random_composition(one), one) == place_objects(random_composition(two), two)


def test_sheets_have_every_kind() -> None:
    for size, side in GLYPH_SIZES.items():
        assert list(load_sheet(size)) == list(KINDS)
        for glyph in load_sheet(size).values():
            assert glyph.shape == (side, side, 4)
            assert glyph[..., 3].mean() > 0.1  # something is drawn
