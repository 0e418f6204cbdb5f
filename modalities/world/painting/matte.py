"""What codes tell of a picture: things before a matte, as films put them, and grounds where no thing is.

    matted(picture, things)

A thing's edge before grass is another code for every blade behind it, and a model would have to meet each of them. So a
cell that belongs to a thing says how the thing is turned and lit, and nothing of the ground or of its light; to paint
these is for whoever decodes, who sees the ground beside the thing. What covers next to nothing of a cell is left out
of it.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from polydraft.modalities.world.painting.staging import TURNS, Pose, Things, lit, turned
from polydraft.modalities.world.painting.textures import Field

CELL = 8  # pixels a side
SHOWN = 0.08  # of a cell: what belongs to a thing
MATTE = np.array((176, 180, 186), np.float32) / np.float32(255)
WHITE = (1.0, 1.0, 1.0)


@functools.cache
def shown(kind: str, size: str) -> NDArray[np.bool_]:
    """`[S/8, S/8]`: cells that belong to a thing, however it is turned."""
    covers = [turned(kind, size, turn)[..., 3] for turn in TURNS]
    side = len(covers[0]) // CELL
    return np.stack(covers).reshape(len(TURNS), side, CELL, side, CELL).mean((2, 4)).max(0) > SHOWN


def before_matte(kind: str, size: str, pose: Pose) -> Field:
    """`[S, S, 3]`: a turned and lit thing before the matte."""
    glyph = lit(turned(kind, size, pose.turn), pose, WHITE)
    return MATTE * (1 - glyph[..., 3:]) + glyph[..., :3]


def matted(picture: Field, things: Things) -> Field:
    """A picture `[128, 128, 3]` with things before a matte in cells that belong to them."""
    picture = picture.copy()
    for item, pose in things:
        belongs = shown(item.kind, item.size).repeat(CELL, 0).repeat(CELL, 1)
        box = picture[item.y : item.y + len(belongs), item.x : item.x + len(belongs)]
        box[belongs] = before_matte(item.kind, item.size, pose)[belongs]
    return picture
