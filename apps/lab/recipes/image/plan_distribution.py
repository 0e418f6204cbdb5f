"""Exact distribution of plans: positions of objects, given the composition and the objects before them in the plan.

    probs = placement_probs(composition, plan_words)

Scenes are sampled by rejection (`modalities/world/scene.py`), so the probability of a position is proportional to the
number of ways to place the rest, counted here by matrix products over pairs of positions. A model trained on these
probabilities learns from one scene what it would learn from all scenes of its composition.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polydraft.modalities.image import scene_plan
from polydraft.modalities.world.glyphs import GLYPH_SIZES
from polydraft.modalities.world.scene import GRID, GRID_SIDE, Composition, ObjectGroup

Probs = NDArray[np.float32]


@functools.cache
def placements() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return side, row and column of every placement in cells, in the order of `scene_plan.placement_tokens`."""
    values = scene_plan.placement_tokens().values()
    sides, rows, columns = zip(*((GLYPH_SIZES[size] // GRID, *where) for size, *where in values), strict=True)
    return np.array(sides), np.array(rows), np.array(columns)


@functools.cache
def placement_prior(size: str | None) -> Probs:
    """Return the prior [P] of placements of one object; both sizes are equally likely."""
    side = placements()[0]
    found = 1.0 / (GRID_SIDE - side + 1) ** 2
    return np.where((size is None) | (side == GLYPH_SIZES.get(size or "", 0) // GRID), found, 0).astype(np.float32)


@functools.cache
def compatible_placements(relation: str | None) -> Probs:
    """Return [P, P], 1 where objects of two groups may be placed, the first in `relation` to the second, else 0."""
    side, row, column = placements()
    clear = {
        "left": column[:, None] + side[:, None] <= column, "right": column + side <= column[:, None],
        "above": row[:, None] + side[:, None] <= row, "below": row + side <= row[:, None],
    }  # fmt: skip
    may = clear[relation] if relation else functools.reduce(np.logical_or, clear.values())
    return may.astype(np.float32)


@functools.cache
def ordered_placements() -> Probs:
    """Return [P, P], 1 where two objects of one group may be placed, which have one size and the plan's order."""
    side, row, column = placements()
    later = (row[:, None] < row) | ((row[:, None] == row) & (column[:, None] < column))
    return compatible_placements(None) * later * (side[:, None] == side)


def placement_probs(composition: Composition, plan_words: Sequence[str]) -> Probs:
    """Return the probabilities [MAX_OBJECTS, P] of the placement of every object of a plan.

    Args:
        composition (Composition): groups of objects and their relation.
        plan_words (Sequence[str]): words of the plan.

    Returns:
        NDArray: rows of zeros for objects that are absent.
    """
    groups = [group for group in composition.groups for _ in range(group.count)]
    places = list(scene_plan.placement_tokens())
    placed = [places.index(where) for where in plan_words[1::2] if where != scene_plan.NO_OBJECT]
    found = np.zeros((scene_plan.MAX_OBJECTS, len(places)), np.float32)
    for index in range(len(groups)):
        chances = next_placement_weights(groups, composition.relation, placed[:index])
        found[index] = chances / chances.sum()
    return found


def next_placement_weights(groups: Sequence[ObjectGroup], relation: str | None, placed: Sequence[int]) -> Probs:
    """Return unnormalised probabilities [P] of the next object's placement, given those before it."""
    here, *ahead = range(len(placed), len(groups))
    free = {index: placement_weights(groups, relation, placed, index) for index in (here, *ahead)}
    if not ahead:
        return free[here]
    follows = pair_compatibility(groups, relation, here, ahead[0]) * free[ahead[0]]
    if len(ahead) > 1:
        last = pair_compatibility(groups, relation, here, ahead[1]) * free[ahead[1]]
        follows = follows * (last @ pair_compatibility(groups, relation, *ahead).T)
    return free[here] * follows.sum(1)


def placement_weights(groups: Sequence[ObjectGroup], relation: str | None, placed: Sequence[int], index: int) -> Probs:
    """Return weights [P] of an object's placement by its prior and the objects placed before."""
    weight = placement_prior(groups[index].size)
    for before, where in enumerate(placed):
        weight = weight * pair_compatibility(groups, relation, before, index)[where]
    return weight


def pair_compatibility(groups: Sequence[ObjectGroup], relation: str | None, first: int, second: int) -> Probs:
    """Return [P, P], 1 where two objects of the composition may be placed together, else 0."""
    return ordered_placements() if groups[first] is groups[second] else compatible_placements(relation)
