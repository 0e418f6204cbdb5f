"""Scenes fit their compositions, nothing overlaps, and the held-out tenth stays held out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polydraft.modalities.world.glyphs import KINDS, SIZES, sheet
from polydraft.modalities.world.judging.matcher import judge
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    CANVAS,
    GRID,
    Composition,
    Group,
    Placed,
    overlap,
    place,
    random_composition,
    stands,
)

seeds = st.integers(0, 2**32 - 1)


@given(seeds, st.booleans())
def test_placed_scenes_satisfy_their_composition(seed: int, held_out: bool) -> None:
    rng = np.random.default_rng(seed)
    composition = random_composition(rng, held_out)
    assert composition.held_out == held_out
    scene = place(composition, rng)
    assert judge(scene, composition).ok
    for index, item in enumerate(scene.objects):
        assert item.x % GRID == item.y % GRID == 0
        assert min(item.x, item.y) >= 0 and max(item.x, item.y) + item.side <= CANVAS
        assert not any(overlap(item, other) for other in scene.objects[:index])


@given(seeds)
def test_relations_mirror_and_exclude_each_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (Placed("cat", ("large", "small")[rng.integers(2)], *(rng.integers(10, size=2) * GRID)) for _ in range(2))
    for relation, mirror in (("left", "right"), ("above", "below")):
        assert stands(a, relation, b) == stands(b, mirror, a)
        assert not (stands(a, relation, b) and stands(a, mirror, b))
    assert overlap(a, b) != any(stands(a, relation, b) for relation in ("left", "right", "above", "below"))


def test_held_out_is_a_tenth_and_does_not_depend_on_size() -> None:
    compositions = [
        Composition(background, (Group(first), Group(second)), "left")
        for background in BACKGROUNDS
        for first in KINDS
        for second in KINDS
    ]
    assert 0.095 < np.mean([composition.held_out for composition in compositions]) < 0.105
    for composition in compositions[:500]:
        sized = tuple(Group(group.kind, group.count, "small") for group in composition.groups)
        assert Composition(composition.background, sized, "left").held_out == composition.held_out
    # known members: a change of the split would leak held-out compositions into training
    known = Composition("yellow", (Group("panda"), Group("rocket")), "left")
    assert [known.held_out, Composition("blue", (Group("frog", 2),)).held_out] == [False, True]


def test_same_seed_same_scene() -> None:
    for seed in range(20):
        one, two = (np.random.default_rng(seed) for _ in range(2))
        assert place(random_composition(one), one) == place(random_composition(two), two)


def test_sheets_hold_every_kind() -> None:
    for size, side in SIZES.items():
        assert list(sheet(size)) == list(KINDS)
        for glyph in sheet(size).values():
            assert glyph.shape == (side, side, 4)
            assert glyph[..., 3].mean() > 0.1  # something is drawn
