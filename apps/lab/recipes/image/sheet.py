"""Contact sheet of scenes in every setting.

python -m polydraft.apps.lab.recipes.image.sheet settings.png --rows 4
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from polydraft.modalities.world.scene import CANVAS, place_objects
from polydraft.modalities.world.worlds import TEXTURED, World

GAP = 4  # pixels between pictures


def sheet(rows: int, seed: int = 0) -> Image.Image:
    """Render a grid with a column per setting and `rows` compositions each."""
    rng = np.random.default_rng(seed)
    step = CANVAS + GAP
    canvas = Image.new("RGB", (len(TEXTURED.backgrounds) * step - GAP, rows * step - GAP), "white")
    for column, name in enumerate(TEXTURED.backgrounds):
        world = World(name, (name,))
        for row in range(rows):
            picture = place_objects(world.random_composition(rng), rng).render()
            canvas.paste(Image.fromarray(picture), (column * step, row * step))
    return canvas


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args: argparse.Namespace = parser.parse_args()
    sheet(args.rows, args.seed).save(args.path)
