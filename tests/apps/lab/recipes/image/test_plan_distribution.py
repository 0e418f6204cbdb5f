"""Laws of plans are those of scenes: enumerated where only the last place is left, and counted in many scenes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polydraft.apps.lab.recipes.image.plan_distribution import placement_probs
from polydraft.modalities.image import scene_plan
from polydraft.modalities.world.glyphs import GLYPH_SIZES
from polydraft.modalities.world.scene import Composition, ObjectGroup, boxes_overlap, is_in_relation, place_objects
from polydraft.modalities.world.worlds import FLAT

from .....covering import first

PLACES = list(scene_plan.placement_tokens())
SCENES = 3000


@given(seed=st.integers(0, 2**32 - 1))
def test_placement_probs_last_object_is_uniform_over_remaining(seed: int) -> None:
    rng = np.random.default_rng(seed)
    composition = FLAT.random_composition(rng)
    scene = place_objects(composition, rng)
    plan_words = scene_plan.plan_for_scene(scene)
    found = placement_probs(composition, plan_words)
    things, last = (
        scene_plan.parse_plan(plan_words),
        plan_words[1::2].index(scene_plan.NO_OBJECT) - 1
        if scene_plan.NO_OBJECT in plan_words
        else scene_plan.MAX_OBJECTS - 1,
    )
    group = composition.groups[-1]
    allowed = np.zeros(len(PLACES))
    for index, word in enumerate(PLACES):
        (item,) = scene_plan.parse_plan([group.kind, word])
        others = things[:last]
        same_kind = [other for other in others if other.kind == item.kind]
        fits = (
            not any(boxes_overlap(item, other) for other in others)
            and all((other.y, other.x) < (item.y, item.x) and other.side == item.side for other in same_kind)
            and group.size in (None, item.size)
            and (composition.relation is None or all(
                is_in_relation(other, composition.relation, item) for other in others if other not in same_kind
            ))
        )  # fmt: skip
        allowed[index] = fits / ((128 - GLYPH_SIZES[item.size]) // 8 + 1) ** 2
    assert np.allclose(found[last], allowed / allowed.sum(), atol=1e-6)
    assert all(found[index, PLACES.index(scene_plan.placement_token(item))] > 0 for index, item in enumerate(things))
    assert not found[last + 1 :].any() and np.allclose(found.sum(1)[: last + 1], 1, atol=1e-5)


@pytest.mark.parametrize(
    "composition",
    first(1, [
        Composition("blue", (ObjectGroup("cat", 1), ObjectGroup("dog", 2, "small")), "left"),
        Composition("blue", (ObjectGroup("cat", 3),)),
        Composition("blue", (ObjectGroup("cat", 2, "large"), ObjectGroup("dog", 1)), "above"),
    ]),
)  # fmt: skip
def test_placement_probs_match_sampled_scenes(composition: Composition) -> None:
    rng = np.random.default_rng(0)
    scenes = [place_objects(composition, rng) for _ in range(SCENES)]
    rows = np.array([row for _, row, _ in scene_plan.placement_tokens().values()])
    observed = np.zeros((scene_plan.MAX_OBJECTS, 13))
    for scene in scenes:
        for index, where in enumerate(scene_plan.plan_for_scene(scene)[1::2]):
            observed[index, scene_plan.placement_tokens()[where][1]] += 1 / SCENES
    mean_probs = sum(placement_probs(composition, scene_plan.plan_for_scene(scene)) for scene in scenes[:400]) / 400
    by_row = np.stack([mean_probs[:, rows == row].sum(1) for row in range(13)], 1)
    assert np.abs(observed - by_row).max() < 0.04  # four deviations of the shares of so few scenes
    first = placement_probs(composition, scene_plan.plan_for_scene(scenes[0]))[0]
    ahead = np.array([first[rows == row].sum() for row in range(13)])
    assert np.abs(observed[0] - ahead).max() < 0.03  # what is ahead is counted: early places of three are likelier
