"""The law of plans: where things may stand, given the caption's composition and the things before them in the plan.

    chances = laws(composition, scene)

Scenes are drawn by rejection (`world.scene.place`), so the chance of a thing's place is how many ways the rest can be
placed, counted here by products of matrices over pairs of places. A model that learns these chances learns from one
scene what it would from all that fit its composition.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polydraft.modalities.image import plan
from polydraft.modalities.world.glyphs import SIZES
from polydraft.modalities.world.scene import GRID, SIDE, Composition, Group

Chances = NDArray[np.float32]


@functools.cache
def spots() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Side, row and column of every place, in cells, in the order of `plan.places`."""
    sides, rows, columns = zip(*((SIZES[size] // GRID, *where) for size, *where in plan.places().values()), strict=True)
    return np.array(sides), np.array(rows), np.array(columns)


@functools.cache
def likely(size: str | None) -> Chances:
    """`[P]`: how likely a place is before anything is known of others; every size is as likely as the other."""
    side = spots()[0]
    found = 1.0 / (SIDE - side + 1) ** 2
    return np.where((size is None) | (side == SIZES.get(size or "", 0) // GRID), found, 0).astype(np.float32)


@functools.cache
def among(relation: str | None) -> Chances:
    """`[P, P]`, 0 or 1: whether things of two groups may stand there, the first in `relation` to the second."""
    side, row, column = spots()
    clear = {
        "left": column[:, None] + side[:, None] <= column, "right": column + side <= column[:, None],
        "above": row[:, None] + side[:, None] <= row, "below": row + side <= row[:, None],
    }  # fmt: skip
    may = clear[relation] if relation else functools.reduce(np.logical_or, clear.values())
    return may.astype(np.float32)


@functools.cache
def alike() -> Chances:
    """`[P, P]`: the same for two things of one group, which have one size and a plan's order."""
    side, row, column = spots()
    later = (row[:, None] < row) | ((row[:, None] == row) & (column[:, None] < column))
    return among(None) * later * (side[:, None] == side)


def laws(composition: Composition, said: Sequence[str]) -> Chances:
    """`[MOST, P]`: chances of the place of every thing of a plan, which says `said`; rows of zeros for things that
    are not there."""
    groups = [group for group in composition.groups for _ in range(group.count)]
    places = list(plan.places())
    stand = [places.index(where) for where in said[1::2] if where != plan.NOTHING]
    found = np.zeros((plan.MOST, len(places)), np.float32)
    for index in range(len(groups)):
        chances = ways(groups, composition.relation, stand[:index])
        found[index] = chances / chances.sum()
    return found


def ways(groups: Sequence[Group], relation: str | None, stand: Sequence[int]) -> Chances:
    """`[P]`: how likely the next thing is to stand somewhere, up to a factor, when so many before it do."""
    here, *ahead = range(len(stand), len(groups))
    free = {index: alone(groups, relation, stand, index) for index in (here, *ahead)}
    if not ahead:
        return free[here]
    follows = pair(groups, relation, here, ahead[0]) * free[ahead[0]]
    if len(ahead) > 1:
        last = pair(groups, relation, here, ahead[1]) * free[ahead[1]]
        follows = follows * (last @ pair(groups, relation, *ahead).T)
    return free[here] * follows.sum(1)


def alone(groups: Sequence[Group], relation: str | None, stand: Sequence[int], index: int) -> Chances:
    """`[P]`: how likely a thing is to stand somewhere, as far as those that stand say."""
    weight = likely(groups[index].size)
    for before, where in enumerate(stand):
        weight = weight * pair(groups, relation, before, index)[where]
    return weight


def pair(groups: Sequence[Group], relation: str | None, first: int, second: int) -> Chances:
    """`[P, P]`: whether two things may stand there."""
    return alike() if groups[first] is groups[second] else among(relation)
