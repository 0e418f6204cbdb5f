"""Posteriors of scenes against enumeration: their products over every scene of a composition sum to one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from polydraft.apps.lab.recipes.latent.posterior import cell_posteriors
from polydraft.modalities.world.glyphs import GLYPH_SIZES
from polydraft.modalities.world.scene import (
    GRID,
    GRID_SIDE,
    NUM_CELLS,
    Composition,
    ObjectGroup,
    PlacedObject,
    Scene,
    boxes_overlap,
    is_in_relation,
)

EMPTY = 0


def paint(scene: Scene, hidden: int = 0) -> np.ndarray:
    """Return synthetic codes, distinct by kind; `hidden` cells of a glyph's first row look like background."""
    codes = np.full((GRID_SIDE, GRID_SIDE), EMPTY)
    for item in scene.objects:
        side, row, column = GLYPH_SIZES[item.size] // GRID, item.y // GRID, item.x // GRID
        glyph = 100 * (1 + ord(item.kind[0])) + np.arange(side**2).reshape(side, side)
        glyph[0, :hidden] = EMPTY
        codes[row : row + side, column : column + side] = glyph
    return codes


def likelihood(composition: Composition, scene: Scene, seed: int = 0, hidden: int = 0) -> float:
    codes = paint(scene, hidden)
    choices, probs, _ = cell_posteriors(composition, scene, codes, EMPTY, seed)
    assert np.allclose(probs.sum(1), 1, atol=1e-4) and (probs > -1e-5).all()
    return float(np.prod((probs * (choices == codes.reshape(NUM_CELLS, 1))).sum(1), dtype=np.float64))


def all_placements(kind: str, size: str) -> list[PlacedObject]:
    cells = GRID_SIDE - GLYPH_SIZES[size] // GRID + 1
    return [PlacedObject(kind, size, x * GRID, y * GRID) for x in range(cells) for y in range(cells)]


@pytest.mark.parametrize("hidden", [0, 2])
def test_cell_posteriors_one_object_is_uniform(hidden: int) -> None:
    composition = Composition("blue", (ObjectGroup("cat", 1, "small"),))
    places = [likelihood(composition, Scene("blue", (item,)), hidden=hidden) for item in all_placements("cat", "small")]
    assert sum(places) == pytest.approx(1, abs=1e-4)
    assert np.allclose(places, 1 / len(places), rtol=1e-3)


@pytest.mark.parametrize("relation", ["left", "below"])
def test_cell_posteriors_two_kinds_sum_to_one(relation: str) -> None:
    composition = Composition("blue", (ObjectGroup("cat", 1, "large"), ObjectGroup("star", 1, "large")), relation)
    pairs = itertools.product(all_placements("cat", "large"), all_placements("star", "large"))
    probs = [likelihood(composition, Scene("blue", (a, b))) for a, b in pairs if is_in_relation(a, relation, b)]
    assert sum(probs) == pytest.approx(1, abs=1e-3) and np.allclose(probs, probs[0], rtol=1e-2)


def test_cell_posteriors_equal_codes_share_probability() -> None:
    composition = Composition("blue", (ObjectGroup("cat", 2, "large"),))
    items = all_placements("cat", "large")
    pairs = [(a, b) for a, b in itertools.combinations(items, 2) if not boxes_overlap(a, b)]
    assert sum(likelihood(composition, Scene("blue", pair)) for pair in pairs) == pytest.approx(1, abs=1e-3)
    choices, probs, starts = cell_posteriors(
        composition, Scene("blue", pairs[0]), paint(Scene("blue", pairs[0])), EMPTY, 0
    )
    repeated = (choices[:, 1] == choices[:, 2]) & (probs[:, 1] > 0)
    assert repeated.any() and (probs[repeated, 2] == 0).all() and starts[repeated].all()


def test_cell_posteriors_three_objects_are_inexact() -> None:
    composition = Composition("blue", (ObjectGroup("cat", 1, "small"), ObjectGroup("star", 2, "small")), "left")
    items = (
        PlacedObject("cat", "small", 0, 64),
        PlacedObject("star", "small", 40, 0),
        PlacedObject("star", "small", 80, 64),
    )
    scene = Scene("blue", items)
    for fixed in range(3):
        choices, probs, starts = cell_posteriors(composition, scene, paint(scene), EMPTY, fixed)
        assert not starts[:6].any()  # the first of the three shows at row 0, column 5
        assert ((probs * (choices == paint(scene).reshape(NUM_CELLS, 1))).sum(1) > 0).all()
