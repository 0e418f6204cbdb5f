"""What every cell of a scene could have been, given the cells before it: soft labels for `tiny-latent`.

Scenes are placed at random, so most of a next-code loss is noise: where an object begins could not be known. But the
law of placements is known (uniform over all that fit), so the chance that an object begins at a cell, given the caption
and what is already visible, can be counted instead of sampled. Training on these laws has the same expected gradient as
training on the codes themselves, and a fraction of its variance.

At most two unseen objects are counted jointly. Of three, one (picked blindly) is held where it is: a law given more
than the model sees, whose mean over scenes is still the law given what it sees.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polydraft.apps.train.image.data import Bools, Codes
from polydraft.modalities.world.glyphs import SIZES
from polydraft.modalities.world.scene import CELLS, GRID, SIDE, Composition, Placed, Scene

MOST = 3  # objects a scene
INVERSE = {"left": "right", "right": "left", "above": "below", "below": "above"}

Floats = NDArray[np.float32]


@functools.cache
def places(side: int) -> tuple[Codes, Codes]:
    """Rows and columns of all places of an object `side` cells wide."""
    rows, columns = np.divmod(np.arange((SIDE - side + 1) ** 2), SIDE - side + 1)
    return rows, columns


@functools.cache
def fits(side: int, other: int, relation: str | None) -> Floats:
    """`[P, Q]`: places of two objects that do not overlap, the first in `relation` to the other if one is given."""
    (r, c), (s, d) = places(side), places(other)
    before = {
        "left": c[:, None] + side <= d, "right": d + other <= c[:, None],
        "above": r[:, None] + side <= s, "below": s + other <= r[:, None],
    }  # fmt: skip
    apart = functools.reduce(np.logical_or, before.values())
    return (apart if relation is None else before[relation]).astype(np.float32)


@functools.cache
def alive(side: int, offset: int) -> Floats:
    """`[P, CELLS]`: whether the first visible cell, `offset` cells behind the corner, is at a cell or after it."""
    return (first_cells(side, offset)[:, None] >= np.arange(CELLS)).astype(np.float32)


@functools.cache
def first_cells(side: int, offset: int) -> Codes:
    rows, columns = places(side)
    return rows * SIDE + columns + offset


def relation_between(composition: Composition, owner: int, other: int) -> str | None:
    """How an object of group `owner` must stand to one of group `other`."""
    if owner == other or composition.relation is None:
        return None
    return composition.relation if owner == 0 else INVERSE[composition.relation]


def laws(composition: Composition, scene: Scene, codes: Codes, empty: int, seed: int) -> tuple[Codes, Floats, Bools]:
    """Codes `[CELLS, 1 + MOST]` that every cell could show, and their chances; the first is the cell's own or `empty`.
    Also which cells something could begin at and nothing was held: their laws are whole.

    codes: the scene's, `[SIDE, SIDE]`, every object a stamp of its own. seed: picks who is held.
    """
    sides = [SIZES[item.size] // GRID for item in scene.objects]
    offsets = [visible_from(codes, item, side, empty) for item, side in zip(scene.objects, sides, strict=True)]
    who, chances, whole = counted(composition, scene, offsets, seed)
    firsts = [corner(item) + offset for item, offset in zip(scene.objects, offsets, strict=True)]
    flat = codes.ravel()
    ids = np.where(who >= 0, flat[firsts][who], empty)
    ids[:, 0] = np.where(chances[:, 0] == 1, flat, empty)
    same = (ids[:, 1] == ids[:, 2]) & (chances[:, 1] > 0)  # one code: one chance
    chances[same, 1], chances[same, 2] = chances[same, 1] + chances[same, 2], 0
    return ids, chances, whole


def counted(composition: Composition, scene: Scene, offsets: Sequence[int], seed: int) -> tuple[Codes, Floats, Bools]:
    """Which object could begin at every cell, `[CELLS, 1 + MOST]`, and its chance; the first is -1, for none: what is
    there goes on, be it ground or an object that has begun. Also which cells something could begin at and nothing was
    held: their laws are whole.

    offsets: of every object, cells in raster order from the corner to the first that shows it; sizes that the caption
    leaves open are taken as known. seed: picks who is held.
    """
    objects, owners = scene.objects, [g for g, group in enumerate(composition.groups) for _ in range(group.count)]
    sides = [SIZES[item.size] // GRID for item in objects]
    place = [item.y // GRID * (SIDE - side + 1) + item.x // GRID for item, side in zip(objects, sides, strict=True)]
    begins = [corner(item) + offset for item, offset in zip(objects, offsets, strict=True)]

    def among(i: int, j: int) -> Floats:
        return fits(sides[i], sides[j], relation_between(composition, owners[i], owners[j]))

    who = np.full((CELLS, 1 + MOST), -1)
    chances, whole = np.zeros((CELLS, 1 + MOST), np.float32), np.zeros(CELLS, bool)
    unseen, start = list(range(len(objects))), 0
    while unseen:
        seen = [i for i in range(len(objects)) if i not in unseen]
        held = unseen[seed % 3] if len(unseen) == 3 else None
        free = [i for i in unseen if i != held]
        known = seen if held is None else [*seen, held]
        room = {i: np.prod([among(i, k)[:, place[k]] for k in known] or [np.ones(1, np.float32)], axis=0) for i in free}
        end = min(begins[i] for i in unseen) + 1
        stage = slice(start, end)
        still = {i: alive(sides[i], offsets[i])[:, stage] * np.reshape(room[i], (-1, 1)) for i in free}
        if len(free) == 2:
            i, j = free
            ways = {i: still[i] * (among(i, j) @ still[j]), j: still[j] * (among(j, i) @ still[i])}
        else:
            ways = still
        total = ways[free[0]].sum(0)
        for slot, i in enumerate(free, 1):
            here = first_cells(sides[i], offsets[i])[:, None] == np.arange(start, end)
            chances[stage, slot] = (ways[i] * here).sum(0) / total
            who[stage, slot] = i
        whole[stage] = held is None
        if held is not None and begins[held] == end - 1:  # the one that was held begins: no chance about it
            chances[end - 1] = 0
            who[end - 1, MOST], chances[end - 1, MOST] = held, 1
        unseen, start = [i for i in unseen if begins[i] >= end], end
    chances[:, 0] = 1 - chances[:, 1:].sum(1)
    whole &= chances[:, 0] < 1
    for item, offset in zip(objects, offsets, strict=True):
        box = behind(item, offset)
        chances[box, 0], chances[box, 1:], whole[box] = 1, 0, False
    return who, chances, whole


def settled(codes: Codes, item: Placed, empty: int) -> Codes:
    """The cells of an object's box behind its first visible one: what is seen goes on as it must."""
    return behind(item, visible_from(codes, item, SIZES[item.size] // GRID, empty))


def behind(item: Placed, offset: int) -> Codes:
    """The cells of an object's box behind the one `offset` cells from its corner."""
    side, begins = SIZES[item.size] // GRID, corner(item)
    box = (begins + np.arange(side)[:, None] * SIDE + np.arange(side)).ravel()
    return box[box > begins + offset]


def visible_from(codes: Codes, item: Placed, side: int, empty: int) -> int:
    """Cells in raster order from an object's corner to its first that is not background."""
    row, column = item.y // GRID, item.x // GRID
    return first_of(codes[row : row + side, column : column + side] != empty)


def first_of(visible: Bools) -> int:
    """Cells in raster order from an object's corner to the first of its own, `[S/8, S/8]`, that is visible."""
    down, right = np.argwhere(visible)[0]
    return int(down) * SIDE + int(right)


def corner(item: Placed) -> int:
    """The cell of an object's top-left corner."""
    return item.y // GRID * SIDE + item.x // GRID
