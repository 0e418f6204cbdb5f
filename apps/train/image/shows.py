"""Look which codes show what: in rendered scenes, which show grounds, and which each kind of thing.

    python -m polydraft.apps.train.image.shows runs/tiny-image/tokenizer      # some minutes; writes shows.safetensors

A plan says what stands on a cell before anything is drawn, so a code that never shows it has no place there: what a
model draws of such codes is a thing a cell off its place, or another one than it planned. Codes of a thing's edge are
seen beside its cells now and then, and show no ground.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from polydraft.apps.train.image.data import belonging, encoded, open_tokenizer, packed_scene, to_pixels
from polydraft.modalities.image import shows
from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.scene import CELLS, Scene, place
from polydraft.modalities.world.worlds import EVERYTHING

SCENES = 10_000
FEWEST = 2_000  # of fewer no table is made: what was not seen is not what is never seen
TOGETHER = 16  # scenes encoded at once
PACKED = 10  # of them, as full of things as can be
GROUND = 0.1  # a code shows grounds if this share of the cells that have it do
THING = 2e-4  # and a kind of thing if this share of the cells of that kind has it


def scenes(rng: np.random.Generator) -> list[Scene]:
    """Some as captions tell them, some packed with things."""
    told = [place(EVERYTHING.composition(rng), rng) for _ in range(TOGETHER - PACKED)]
    return told + [packed_scene(rng, backgrounds=EVERYTHING.backgrounds) for _ in range(PACKED)]


@torch.no_grad()
def counted(folder: Path, number: int, seed: int, seconds: float = math.inf) -> NDArray[np.int64]:
    """`[1 + kinds, V]`: how many cells of grounds, and of every kind, each code has, of scenes seen in that time."""
    vq, rng, kinds = open_tokenizer(folder), np.random.default_rng(seed), list(KINDS)
    found, begun = np.zeros((1 + len(kinds), vq.config.codebook_size), np.int64), time.monotonic()
    for _ in tqdm(range(0, number, TOGETHER), desc="look", unit="batch"):
        if time.monotonic() - begun > seconds:
            break
        some = scenes(rng)
        for scene, codes in zip(some, encoded(vq, to_pixels([scene.matted() for scene in some])), strict=True):
            np.add.at(found[0], codes[~belonging(scene.objects)], 1)
            for thing in scene.objects:
                np.add.at(found[1 + kinds.index(thing.kind)], codes[belonging([thing])], 1)
    return found


def told(counts: NDArray[np.int64]) -> Tensor:
    """`[1 + kinds, V]` bool, of such counts; a kind that was never seen may be shown by any code."""
    cells = counts.sum(1, keepdims=True)
    shown = (counts > THING * cells) | (cells == 0)
    shown[0] = counts[0] > GROUND * counts.sum(0)
    return torch.from_numpy(shown)


def run(folder: Path, number: int = SCENES, seed: int = 0, minutes: float = math.inf) -> None:
    """Look at so many scenes through the tokenizer in `folder`, for so long at most, and say there what was seen.

    A table that is younger than the weights stays; without one, any code may stand anywhere.
    """
    written = folder / shows.FILE
    if written.exists() and written.stat().st_mtime_ns >= (folder / "model.safetensors").stat().st_mtime_ns:
        return
    written.unlink(missing_ok=True)
    counts = counted(folder, number, seed, 60 * minutes)
    seen = int(counts.sum()) // CELLS
    if seen < FEWEST:
        print(f"{seen} scenes seen, too few to say what codes show; any may stand anywhere", flush=True)
        return
    table = told(counts)
    shows.save(table, folder)
    each = table[1:].sum(1).double().mean().item()
    print(f"of {table.shape[1]} codes {int(table[0].sum())} show grounds, {each:.0f} a kind of thing", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of a tokenizer")
    parser.add_argument("--number", type=int, default=SCENES, help="scenes to look at")
    parser.add_argument("--seed", type=int, default=0)
    run(**vars(parser.parse_args()))
