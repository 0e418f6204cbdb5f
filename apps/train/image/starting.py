"""What could begin at every cell of textured scenes: counted as on flat colours, and drawn as it would look there.

    choices, chances = starting_laws(compositions, scenes, codes, encode, rng)

Where a thing begins is one event among two hundred codes of texture, and a model that only sees where it did happen
learns slowly that it has to. The chances are the flat world's (`posterior.py`). What would be seen is the first cell of
the thing, turned and lit anew, before the ground that is there without it: one draw from the law of its code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from polydraft.apps.train.image.data import shown_from, to_pixels
from polydraft.apps.train.image.posterior import CELLS, MOST, SIDE, Codes, Floats, corner, counted
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.painting.staging import Pose, lit, turned
from polydraft.modalities.world.painting.textures import Field
from polydraft.modalities.world.scene import GRID, Composition, Placed, Scene

POSES = 3  # of every thing
Cells = list[tuple[int, int, int]]  # scene, cell, slot


def starting_laws(
    compositions: Sequence[Composition | None], scenes: Sequence[Scene], codes: Codes,
    encode: Callable[[Tensor], Codes], rng: np.random.Generator,
) -> tuple[Codes, Floats]:  # fmt: skip
    """Codes `[B, CELLS, 1 + MOST]` that every cell could show, and their chances; of a scene without a composition its
    own codes alone. codes: `[B, H/8, W/8]`; encode: of pictures or single cells `[N, 3, H, W]`.
    """
    flat = codes.reshape(len(scenes), CELLS)
    choices = np.repeat(flat[..., None], 1 + MOST, -1)
    chances = np.zeros(choices.shape, np.float32)
    chances[..., 0] = 1
    where: Cells = []
    looks: list[Field] = []
    for index, (composition, scene) in enumerate(zip(compositions, scenes, strict=True)):
        if composition is None:
            continue
        offsets = [shown_from(item.kind, item.size) for item in scene.objects]
        who, chances[index], _ = counted(composition, scene, offsets, int(rng.integers(6)))
        bare = cells_of(np.asarray(replace(scene, objects=()).render(), np.float32) / np.float32(255))
        for number, (item, offset) in enumerate(zip(scene.objects, offsets, strict=True)):
            begins = corner(item) + offset
            cells, slots = np.nonzero((who == number) & (chances[index] > 0) & (np.arange(CELLS) != begins)[:, None])
            first = firsts(item, offset, scene.background, rng)[rng.integers(POSES, size=len(cells))]
            looks += [*(bare[cells] * (1 - first[..., 3:]) + first[..., :3]), bare[begins]]
            where += [(index, int(cell), int(slot)) for cell, slot in zip(cells, slots, strict=True)]
            where.append((index, begins, 0))
    if where:
        seen = [(np.clip(look, 0, 1) * 255 + 0.5).astype(np.uint8) for look in looks]
        choices[tuple(np.transpose(where))] = encode(to_pixels(seen))[:, 0, 0]
    return choices, chances


def cells_of(picture: Field) -> Field:
    """`[CELLS, 8, 8, 3]` of a picture `[128, 128, 3]`."""
    return picture.reshape(SIDE, GRID, SIDE, GRID, -1).swapaxes(1, 2).reshape(CELLS, GRID, GRID, -1)


def firsts(item: Placed, offset: int, setting: str, rng: np.random.Generator) -> Field:
    """The cell `offset` cells from a thing's corner in several poses, `[POSES, 8, 8, 4]`, premultiplied."""
    down, right = (GRID * step for step in divmod(offset, SIDE))
    poses = [Pose.random(rng, float(rng.uniform(-1, 1))) for _ in range(POSES)]
    drawn = [lit(turned(item.kind, item.size, pose.turn), pose, SETTINGS[setting].tint) for pose in poses]
    return np.stack([glyph[down : down + GRID, right : right + GRID] for glyph in drawn])
