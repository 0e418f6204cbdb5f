"""Images with objects on a matte of one colour, as films combine layers, and backgrounds elsewhere.

    draw_on_matte(background, items)

The edge of an object on grass would need another code for every blade behind it. So the cells of an object show how it
is rotated and lit, and nothing of the background or of its light; the decoder paints these, since it sees the
background beside the object. Cells that objects hardly cover belong to the background.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from polydraft.modalities.world.painting.staging import ANGLES, Pose, PosedItems, light_glyph, rotated_glyph
from polydraft.modalities.world.painting.textures import Field

CELL = 8  # pixels a side
MIN_COVERAGE = 0.08  # covered share from which a cell belongs to an object
MATTE_COLOUR = np.array((176, 180, 186), np.float32) / np.float32(255)
WHITE = (1.0, 1.0, 1.0)


@functools.cache
def kind_cells(kind: str, size: str) -> NDArray[np.bool_]:
    """Return the `[S/8, S/8]` bool mask of cells that belong to an object at any rotation."""
    alphas = [rotated_glyph(kind, size, angle)[..., 3] for angle in ANGLES]
    side = len(alphas[0]) // CELL
    return np.stack(alphas).reshape(len(ANGLES), side, CELL, side, CELL).mean((2, 4)).max(0) > MIN_COVERAGE


def glyph_on_matte(kind: str, size: str, pose: Pose) -> Field:
    """Return a rotated and lit object on the matte, `[S, S, 3]`."""
    glyph = light_glyph(rotated_glyph(kind, size, pose.angle), pose, WHITE)
    return MATTE_COLOUR * (1 - glyph[..., 3:]) + glyph[..., :3]


def draw_on_matte(background: Field, items: PosedItems) -> Field:
    """Return the background `[128, 128, 3]` with objects on a matte in the cells that belong to them."""
    image = background.copy()
    for item, pose in items:
        mask = kind_cells(item.kind, item.size).repeat(CELL, 0).repeat(CELL, 1)
        box = image[item.y : item.y + len(mask), item.x : item.x + len(mask)]
        box[mask] = glyph_on_matte(item.kind, item.size, pose)[mask]
    return image
