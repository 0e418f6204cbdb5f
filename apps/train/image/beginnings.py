"""Codes that tell that a thing begins: what its first cell may look like, and grounds seldom do.

firsts = first_codes(vq, WORLDS["settings"], np.random.default_rng(0))
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from polydraft.apps.train.image.data import to_pixels
from polydraft.apps.train.image.posterior import Codes, first_of
from polydraft.apps.train.image.starting import cell_of, firsts
from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.painting.matte import before_matte, shown
from polydraft.modalities.world.painting.staging import Pose
from polydraft.modalities.world.scene import Placed, Scene, to_bytes
from polydraft.modalities.world.worlds import World

LOOKS = 4  # times `starting.POSES` of every thing
GROUNDS = 16  # of every setting


def first_codes(encode: Callable[[Tensor], Codes], among: World, rng: np.random.Generator) -> Tensor:
    """Ids in the codebook, ascending. encode: of pictures or single cells `[N, 3, H, W]`."""
    looks = []
    for kind in KINDS:
        for size in SIZES:
            offset = first_of(shown(kind, size))
            looks.append(cell_of(before_matte(kind, size, Pose()), offset))
            if among.settings:
                looks += [one for _ in range(LOOKS) for one in firsts(Placed(kind, size, 0, 0), offset, rng)]
    empty = [Scene(name, (), int(rng.integers(2**32))) for name in among.settings for _ in range(GROUNDS)]
    empty += [Scene(name, ()) for name in among.backgrounds if name not in among.settings]
    grounds = np.concatenate([encode(to_pixels([scene.matted()])).ravel() for scene in empty])
    begins = encode(to_pixels([to_bytes(look) for look in looks])).ravel()
    many = 1 + max(int(grounds.max()), int(begins.max()))
    telling = np.bincount(begins, minlength=many) > np.bincount(grounds, minlength=many)
    return torch.from_numpy(telling.nonzero()[0])
