"""Laws of plans are those of scenes: enumerated where only the last place is left, and counted in many scenes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polydraft.apps.train.image.placing import laws
from polydraft.modalities.image import plan
from polydraft.modalities.world.glyphs import SIZES
from polydraft.modalities.world.scene import Composition, Group, overlap, place, stands
from polydraft.modalities.world.worlds import FLAT

from ....covering import first

PLACES = list(plan.places())
SCENES = 3000


@given(seed=st.integers(0, 2**32 - 1))
def test_the_last_things_law_is_every_place_that_is_left(seed: int) -> None:
    rng = np.random.default_rng(seed)
    composition = FLAT.composition(rng)
    scene = place(composition, rng)
    said = plan.of(scene)
    found = laws(composition, said)
    things, last = plan.things(said), said[1::2].index(plan.NOTHING) - 1 if plan.NOTHING in said else plan.MOST - 1
    group = composition.groups[-1]
    allowed = np.zeros(len(PLACES))
    for index, word in enumerate(PLACES):
        (item,) = plan.things([group.kind, word])
        others = things[:last]
        alike = [other for other in others if other.kind == item.kind]
        fits = (
            not any(overlap(item, other) for other in others)
            and all((other.y, other.x) < (item.y, item.x) and other.side == item.side for other in alike)
            and group.size in (None, item.size)
            and (composition.relation is None or all(
                stands(other, composition.relation, item) for other in others if other not in alike
            ))
        )  # fmt: skip
        allowed[index] = fits / ((128 - SIZES[item.size]) // 8 + 1) ** 2
    assert np.allclose(found[last], allowed / allowed.sum(), atol=1e-6)
    assert all(found[index, PLACES.index(plan.place_of(item))] > 0 for index, item in enumerate(things))
    assert not found[last + 1 :].any() and np.allclose(found.sum(1)[: last + 1], 1, atol=1e-5)


@pytest.mark.parametrize(
    "composition",
    first(1, [
        Composition("blue", (Group("cat", 1), Group("dog", 2, "small")), "left"),
        Composition("blue", (Group("cat", 3),)),
        Composition("blue", (Group("cat", 2, "large"), Group("dog", 1)), "above"),
    ]),
)  # fmt: skip
def test_laws_are_shares_of_scenes(composition: Composition) -> None:
    rng = np.random.default_rng(0)
    scenes = [place(composition, rng) for _ in range(SCENES)]
    rows = np.array([row for _, row, _ in plan.places().values()])
    counted = np.zeros((plan.MOST, 13))
    for scene in scenes:
        for index, where in enumerate(plan.of(scene)[1::2]):
            counted[index, plan.places()[where][1]] += 1 / SCENES
    told = sum(laws(composition, plan.of(scene)) for scene in scenes[:400]) / 400
    by_row = np.stack([told[:, rows == row].sum(1) for row in range(13)], 1)
    assert np.abs(counted - by_row).max() < 0.04  # four deviations of the shares of so few scenes
    first = laws(composition, plan.of(scenes[0]))[0]
    ahead = np.array([first[rows == row].sum() for row in range(13)])
    assert np.abs(counted[0] - ahead).max() < 0.03  # what is ahead is counted: early places of three are likelier
