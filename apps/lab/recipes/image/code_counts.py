"""Count in rendered scenes which codes show backgrounds, and which show each kind of object.

    python -m polydraft.apps.lab.recipes.image.code_counts runs/tiny-image/tokenizer      # takes some minutes

A plan states what lies on a cell before its code is generated, so codes that never show it can be masked there: a model
that samples such codes draws an object a cell off its position, or another one than planned. Codes of an object's edge
occur beside its cells now and then, and do not count as background.
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

from polydraft.apps.lab.recipes.image.data import (
    encode_images,
    images_to_tensor,
    load_vq_tokenizer,
    object_cells,
    packed_scene,
)
from polydraft.modalities.image import code_contents
from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.scene import NUM_CELLS, Scene, place_objects
from polydraft.modalities.world.worlds import EVERYTHING

SCENES = 10_000
FEWEST = 2_000  # with fewer scenes no table is written, as an unseen code need not be impossible
TOGETHER = 16  # scenes encoded at once
PACKED = 10  # of them are packed with objects
GROUND = 0.1  # a code shows backgrounds if this share of the cells that have it do
THING = 2e-4  # and a kind of object if this share of the cells of that kind has it


def sample_scenes(rng: np.random.Generator) -> list[Scene]:
    """Sample scenes, batch from the grammar of captions and batch packed with objects."""
    sampled = [place_objects(EVERYTHING.random_composition(rng), rng) for _ in range(TOGETHER - PACKED)]
    return sampled + [packed_scene(rng, backgrounds=EVERYTHING.backgrounds) for _ in range(PACKED)]


@torch.no_grad()
def count_codes(folder: Path, number: int, seed: int, seconds: float = math.inf) -> NDArray[np.int64]:
    """Count the cells [1 + kinds, V] of backgrounds and of every kind that each code has, for at most `seconds`."""
    vq, rng, kinds = load_vq_tokenizer(folder), np.random.default_rng(seed), list(KINDS)
    counts, start_time = np.zeros((1 + len(kinds), vq.config.codebook_size), np.int64), time.monotonic()
    for _ in tqdm(range(0, number, TOGETHER), desc="look", unit="batch"):
        if time.monotonic() - start_time > seconds:
            break
        batch = sample_scenes(rng)
        pixels = images_to_tensor([scene.render_on_matte() for scene in batch])
        for scene, codes in zip(batch, encode_images(vq, pixels), strict=True):
            np.add.at(counts[0], codes[~object_cells(scene.objects)], 1)
            for thing in scene.objects:
                np.add.at(counts[1 + kinds.index(thing.kind)], codes[object_cells([thing])], 1)
    return counts


def threshold_counts(counts: NDArray[np.int64]) -> Tensor:
    """Return a table [1 + kinds, V] bool of such counts; a kind that never occurred may be shown by any code."""
    cells = counts.sum(1, keepdims=True)
    shown = (counts > THING * cells) | (cells == 0)
    shown[0] = counts[0] > GROUND * counts.sum(0)
    return torch.from_numpy(shown)


def run(folder: Path, number: int = SCENES, seed: int = 0, minutes: float = math.inf) -> None:
    """Encode scenes with the tokenizer in `folder` and write the table there.

    A table that is newer than the weights is kept; without a table any code is allowed everywhere.
    """
    table_path = folder / code_contents.FILE
    if table_path.exists() and table_path.stat().st_mtime_ns >= (folder / "model.safetensors").stat().st_mtime_ns:
        return
    table_path.unlink(missing_ok=True)
    counts = count_codes(folder, number, seed, 60 * minutes)
    seen = int(counts.sum()) // NUM_CELLS
    if seen < FEWEST:
        print(f"{seen} scenes seen, too few to say what codes show; any may stand anywhere", flush=True)
        return
    table = threshold_counts(counts)
    code_contents.save(table, folder)
    each = table[1:].sum(1).double().mean().item()
    print(f"of {table.shape[1]} codes {int(table[0].sum())} show grounds, {each:.0f} a kind of thing", flush=True)


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of a tokenizer")
    parser.add_argument("--number", type=int, default=SCENES, help="scenes to look at")
    parser.add_argument("--seed", type=int, default=0)
    run(**vars(parser.parse_args()))
