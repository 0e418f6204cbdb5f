"""Counted laws of scenes against enumeration: over every scene of a composition, their products sum to one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from polydraft.apps.train.latent.posterior import laws
from polydraft.modalities.world.glyphs import SIZES
from polydraft.modalities.world.scene import CELLS, GRID, SIDE, Composition, Group, Placed, Scene, overlap, stands

EMPTY = 0


def paint(scene: Scene, hidden: int = 0) -> np.ndarray:
    """Made-up codes: every kind has its own, and `hidden` cells of a glyph's first row look like background."""
    codes = np.full((SIDE, SIDE), EMPTY)
    for item in scene.objects:
        side, row, column = SIZES[item.size] // GRID, item.y // GRID, item.x // GRID
        glyph = 100 * (1 + ord(item.kind[0])) + np.arange(side**2).reshape(side, side)
        glyph[0, :hidden] = EMPTY
        codes[row : row + side, column : column + side] = glyph
    return codes


def likelihood(composition: Composition, scene: Scene, seed: int = 0, hidden: int = 0) -> float:
    codes = paint(scene, hidden)
    choices, chances, _ = laws(composition, scene, codes, EMPTY, seed)
    assert np.allclose(chances.sum(1), 1, atol=1e-4) and (chances > -1e-5).all()
    return float(np.prod((chances * (choices == codes.reshape(CELLS, 1))).sum(1), dtype=np.float64))


def everywhere(kind: str, size: str) -> list[Placed]:
    cells = SIDE - SIZES[size] // GRID + 1
    return [Placed(kind, size, x * GRID, y * GRID) for x in range(cells) for y in range(cells)]


@pytest.mark.parametrize("hidden", [0, 2])
def test_one_object(hidden: int) -> None:
    composition = Composition("blue", (Group("cat", 1, "small"),))
    places = [likelihood(composition, Scene("blue", (item,)), hidden=hidden) for item in everywhere("cat", "small")]
    assert sum(places) == pytest.approx(1, abs=1e-4)
    assert np.allclose(places, 1 / len(places), rtol=1e-3)


@pytest.mark.parametrize("relation", ["left", "below"])
def test_two_kinds_in_a_relation(relation: str) -> None:
    composition = Composition("blue", (Group("cat", 1, "large"), Group("star", 1, "large")), relation)
    pairs = itertools.product(everywhere("cat", "large"), everywhere("star", "large"))
    chances = [likelihood(composition, Scene("blue", (a, b))) for a, b in pairs if stands(a, relation, b)]
    assert sum(chances) == pytest.approx(1, abs=1e-3) and np.allclose(chances, chances[0], rtol=1e-2)


def test_two_of_a_kind_share_one_chance() -> None:
    composition = Composition("blue", (Group("cat", 2, "large"),))
    items = everywhere("cat", "large")
    pairs = [(a, b) for a, b in itertools.combinations(items, 2) if not overlap(a, b)]
    assert sum(likelihood(composition, Scene("blue", pair)) for pair in pairs) == pytest.approx(1, abs=1e-3)
    choices, chances, starts = laws(composition, Scene("blue", pairs[0]), paint(Scene("blue", pairs[0])), EMPTY, 0)
    repeated = (choices[:, 1] == choices[:, 2]) & (chances[:, 1] > 0)
    assert repeated.any() and (chances[repeated, 2] == 0).all() and starts[repeated].all()


def test_of_three_the_held_one_is_known_and_nothing_before_it_is_whole() -> None:
    composition = Composition("blue", (Group("cat", 1, "small"), Group("star", 2, "small")), "left")
    items = (Placed("cat", "small", 0, 64), Placed("star", "small", 40, 0), Placed("star", "small", 80, 64))
    scene = Scene("blue", items)
    for held in range(3):
        choices, chances, starts = laws(composition, scene, paint(scene), EMPTY, held)
        assert not starts[:6].any()  # the first of the three shows at row 0, column 5
        assert ((chances * (choices == paint(scene).reshape(CELLS, 1))).sum(1) > 0).all()
