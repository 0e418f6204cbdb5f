"""What could begin at every cell of textured scenes: counted as on flat colours, and drawn as it would look there.

    choices, chances = starting_laws(compositions, scenes, grounds, codes, encode, rng)

Where a thing begins is one event among two hundred codes of texture, and a model that only sees where it did happen
learns slowly that it has to. The chances are the flat world's (`posterior.py`). What would be seen is the first cell of
the thing, turned and lit anew, before its matte: one draw from the law of its code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from polydraft.apps.train.image.data import to_pixels
from polydraft.apps.train.image.posterior import CELLS, MOST, SIDE, Codes, Floats, corner, counted, first_of
from polydraft.modalities.world.painting.matte import before_matte, shown
from polydraft.modalities.world.painting.staging import Pose
from polydraft.modalities.world.painting.textures import Field
from polydraft.modalities.world.scene import GRID, Composition, Placed, Scene, to_bytes

POSES = 3  # of every thing
Cells = list[tuple[int, int, int]]  # scene, cell, slot


def starting_laws(
    compositions: Sequence[Composition | None], scenes: Sequence[Scene], grounds: Sequence[Field], codes: Codes,
    encode: Callable[[Tensor], Codes], rng: np.random.Generator,
) -> tuple[Codes, Floats]:  # fmt: skip
    """Codes `[B, CELLS, 1 + MOST]` that every cell could show, and their chances; of a scene without a composition its
    own codes alone. grounds: what is behind things, `[128, 128, 3]`; codes: `[B, H/8, W/8]`; encode: of pictures or
    single cells `[N, 3, H, W]`.
    """
    flat = codes.reshape(len(scenes), CELLS)
    choices = np.repeat(flat[..., None], 1 + MOST, -1)
    chances = np.zeros(choices.shape, np.float32)
    chances[..., 0] = 1
    where: Cells = []
    looks: list[Field] = []
    for index, (composition, scene, ground) in enumerate(zip(compositions, scenes, grounds, strict=True)):
        if composition is None:
            continue
        offsets = [first_of(shown(item.kind, item.size)) for item in scene.objects]
        who, chances[index], _ = counted(composition, scene, offsets, int(rng.integers(6)))
        for number, (item, offset) in enumerate(zip(scene.objects, offsets, strict=True)):
            begins = corner(item) + offset
            cells, slots = np.nonzero((who == number) & (chances[index] > 0) & (np.arange(CELLS) != begins)[:, None])
            looks += [*firsts(item, offset, rng)[rng.integers(POSES, size=len(cells))], cell_of(ground, begins)]
            where += [(index, int(cell), int(slot)) for cell, slot in zip(cells, slots, strict=True)]
            where.append((index, begins, 0))
    if where:
        choices[tuple(np.transpose(where))] = encode(to_pixels([to_bytes(look) for look in looks]))[:, 0, 0]
    return choices, chances


def cell_of(picture: Field, cell: int) -> Field:
    """`[8, 8, 3]` of a picture `[128, 128, 3]`."""
    row, column = (GRID * step for step in divmod(cell, SIDE))
    return picture[row : row + GRID, column : column + GRID]


def firsts(item: Placed, offset: int, rng: np.random.Generator) -> Field:
    """The cell `offset` cells from a thing's corner in several poses, `[POSES, 8, 8, 3]`."""
    poses = [Pose.random(rng, float(rng.uniform(-1, 1))) for _ in range(POSES)]
    return np.stack([cell_of(before_matte(item.kind, item.size, pose), offset) for pose in poses])
