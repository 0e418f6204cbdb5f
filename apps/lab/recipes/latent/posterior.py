"""Exact posterior of every cell of a scene given the cells before it: soft labels for `tiny-latent`.

Scenes are placed at random, so most of a next-code loss is noise: where an object starts is unpredictable. But the
distribution of placements is known (uniform over all that fit), so the probability that an object starts at a cell,
given the caption and what is already visible, can be counted instead of sampled. Training on these probabilities has
the same expected gradient as training on the codes themselves, and a fraction of its variance.

At most two unseen objects are counted jointly. Of three, one (chosen at random) is fixed at its position: a posterior
given more than the model sees, whose mean over scenes is still the posterior given what it sees.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polydraft.apps.lab.recipes.image.data import Bools, Codes
from polydraft.modalities.world.glyphs import GLYPH_SIZES
from polydraft.modalities.world.scene import GRID, GRID_SIDE, NUM_CELLS, Composition, PlacedObject, Scene

MAX_OBJECTS = 3  # objects a scene
INVERSE = {"left": "right", "right": "left", "above": "below", "below": "above"}

Floats = NDArray[np.float32]


@functools.cache
def placements(side: int) -> tuple[Codes, Codes]:
    """Return rows and columns of all placements of an object `side` cells wide."""
    rows, columns = np.divmod(np.arange((GRID_SIDE - side + 1) ** 2), GRID_SIDE - side + 1)
    return rows, columns


@functools.cache
def compatible_placements(side: int, other: int, relation: str | None) -> Floats:
    """Return [P, Q], 1 for placements of two objects that do not overlap and stand in `relation` if one is given."""
    (r, c), (s, d) = placements(side), placements(other)
    before = {
        "left": c[:, None] + side <= d, "right": d + other <= c[:, None],
        "above": r[:, None] + side <= s, "below": s + other <= r[:, None],
    }  # fmt: skip
    apart = functools.reduce(np.logical_or, before.values())
    return (apart if relation is None else before[relation]).astype(np.float32)


@functools.cache
def not_before_cell(side: int, offset: int) -> Floats:
    """Return [P, CELLS], 1 where the first visible cell, `offset` cells after the corner, is not before a cell."""
    return (first_cells(side, offset)[:, None] >= np.arange(NUM_CELLS)).astype(np.float32)


@functools.cache
def first_cells(side: int, offset: int) -> Codes:
    rows, columns = placements(side)
    return rows * GRID_SIDE + columns + offset


def relation_between(composition: Composition, owner: int, other: int) -> str | None:
    """Return the relation of an object of group `owner` to one of group `other`."""
    if owner == other or composition.relation is None:
        return None
    return composition.relation if owner == 0 else INVERSE[composition.relation]


def cell_posteriors(
    composition: Composition, scene: Scene, codes: Codes, empty: int, seed: int
) -> tuple[Codes, Floats, Bools]:
    """Return the candidate codes of every cell and their posterior probabilities.

    Args:
        composition (Composition): groups of objects and their relation.
        scene (Scene): a placement of the composition.
        codes (NDArray): [SIDE, SIDE] codes of the scene.
        empty (int): code of its background.
        seed (int): chooses which of three unseen objects is fixed.

    Returns:
        tuple: candidates [CELLS, 1 + MAX_OBJECTS], the first being the cell's own code or `empty`; their probabilities;
        and [CELLS] bool, cells at which an object may start and none was fixed, whose posterior is exact.
    """
    sides = [GLYPH_SIZES[item.size] // GRID for item in scene.objects]
    offsets = [first_visible_offset(codes, item, side, empty) for item, side in zip(scene.objects, sides, strict=True)]
    who, probs, is_exact = object_posteriors(composition, scene, offsets, seed)
    firsts = [corner_cell(item) + offset for item, offset in zip(scene.objects, offsets, strict=True)]
    flat = codes.ravel()
    ids = np.where(who >= 0, flat[firsts][who], empty)
    ids[:, 0] = np.where(probs[:, 0] == 1, flat, empty)
    same = (ids[:, 1] == ids[:, 2]) & (probs[:, 1] > 0)  # one code: one chance
    probs[same, 1], probs[same, 2] = probs[same, 1] + probs[same, 2], 0
    return ids, probs, is_exact


def object_posteriors(
    composition: Composition, scene: Scene, offsets: Sequence[int], seed: int
) -> tuple[Codes, Floats, Bools]:
    """Return which objects may start at every cell and their posterior probabilities.

    Args:
        composition (Composition): groups of objects and their relation.
        scene (Scene): a placement of it; sizes that the caption leaves open are taken as known.
        offsets (Sequence[int]): cells in raster order from the corner of every object to its first visible cell.
        seed (int): chooses which of three unseen objects is fixed.

    Returns:
        tuple: indices [CELLS, 1 + MAX_OBJECTS] of objects, the first -1 for none, where background or an object that
        has started goes on; their probabilities; and [CELLS] bool, cells whose posterior is exact.
    """
    objects, owners = scene.objects, [g for g, group in enumerate(composition.groups) for _ in range(group.count)]
    sides = [GLYPH_SIZES[item.size] // GRID for item in objects]
    place = [
        item.y // GRID * (GRID_SIDE - side + 1) + item.x // GRID for item, side in zip(objects, sides, strict=True)
    ]
    begins = [corner_cell(item) + offset for item, offset in zip(objects, offsets, strict=True)]

    def pair_fits(i: int, j: int) -> Floats:
        return compatible_placements(sides[i], sides[j], relation_between(composition, owners[i], owners[j]))

    who = np.full((NUM_CELLS, 1 + MAX_OBJECTS), -1)
    probs, is_exact = np.zeros((NUM_CELLS, 1 + MAX_OBJECTS), np.float32), np.zeros(NUM_CELLS, bool)
    unseen, start = list(range(len(objects))), 0
    while unseen:
        seen = [i for i in range(len(objects)) if i not in unseen]
        fixed = unseen[seed % 3] if len(unseen) == 3 else None
        free = [i for i in unseen if i != fixed]
        known = seen if fixed is None else [*seen, fixed]
        room = {
            i: np.prod([pair_fits(i, k)[:, place[k]] for k in known] or [np.ones(1, np.float32)], axis=0) for i in free
        }
        end = min(begins[i] for i in unseen) + 1
        stage = slice(start, end)
        alive = {i: not_before_cell(sides[i], offsets[i])[:, stage] * np.reshape(room[i], (-1, 1)) for i in free}
        if len(free) == 2:
            i, j = free
            weights = {i: alive[i] * (pair_fits(i, j) @ alive[j]), j: alive[j] * (pair_fits(j, i) @ alive[i])}
        else:
            weights = alive
        total = weights[free[0]].sum(0)
        for slot, i in enumerate(free, 1):
            here = first_cells(sides[i], offsets[i])[:, None] == np.arange(start, end)
            probs[stage, slot] = (weights[i] * here).sum(0) / total
            who[stage, slot] = i
        is_exact[stage] = fixed is None
        if fixed is not None and begins[fixed] == end - 1:  # the fixed object starts with certainty
            probs[end - 1] = 0
            who[end - 1, MAX_OBJECTS], probs[end - 1, MAX_OBJECTS] = fixed, 1
        unseen, start = [i for i in unseen if begins[i] >= end], end
    probs[:, 0] = 1 - probs[:, 1:].sum(1)
    is_exact &= probs[:, 0] < 1
    for item, offset in zip(objects, offsets, strict=True):
        box = cells_after(item, offset)
        probs[box, 0], probs[box, 1:], is_exact[box] = 1, 0, False
    return who, probs, is_exact


def determined_cells(codes: Codes, item: PlacedObject, empty: int) -> Codes:
    """Return the cells of an object's box after its first visible one, which are determined by it."""
    return cells_after(item, first_visible_offset(codes, item, GLYPH_SIZES[item.size] // GRID, empty))


def cells_after(item: PlacedObject, offset: int) -> Codes:
    """Return the cells of an object's box after the one `offset` cells from its corner."""
    side, begins = GLYPH_SIZES[item.size] // GRID, corner_cell(item)
    box = (begins + np.arange(side)[:, None] * GRID_SIDE + np.arange(side)).ravel()
    return box[box > begins + offset]


def first_visible_offset(codes: Codes, item: PlacedObject, side: int, empty: int) -> int:
    """Return the number of cells in raster order from an object's corner to its first that is not background."""
    row, column = item.y // GRID, item.x // GRID
    return first_true_offset(codes[row : row + side, column : column + side] != empty)


def first_true_offset(visible: Bools) -> int:
    """Return the number of cells in raster order from an object's corner to its first visible cell, [S/8, S/8]."""
    down, right = np.argwhere(visible)[0]
    return int(down) * GRID_SIDE + int(right)


def corner_cell(item: PlacedObject) -> int:
    """Return the cell of an object's top-left corner."""
    return item.y // GRID * GRID_SIDE + item.x // GRID
