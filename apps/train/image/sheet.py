"""A sheet of scenes in every setting, to be looked at.

python -m polydraft.apps.train.image.sheet settings.png --rows 4
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from polydraft.modalities.world.scene import CANVAS, place
from polydraft.modalities.world.worlds import TEXTURED, World

GAP = 4  # pixels between pictures


def sheet(rows: int, seed: int = 0) -> Image.Image:
    """A column a setting, `rows` compositions each."""
    rng = np.random.default_rng(seed)
    step = CANVAS + GAP
    canvas = Image.new("RGB", (len(TEXTURED.backgrounds) * step - GAP, rows * step - GAP), "white")
    for column, name in enumerate(TEXTURED.backgrounds):
        alone = World(name, (name,))
        for row in range(rows):
            picture = place(alone.composition(rng), rng).render()
            canvas.paste(Image.fromarray(picture), (column * step, row * step))
    return canvas


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sheet(args.rows, args.seed).save(args.path)
