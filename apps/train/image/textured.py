"""Captions and codes of textured scenes: rendered and encoded as they are needed, or ahead of time into shards.

    python -m polydraft.apps.train.image.textured --tokenizer runs/tiny-image/tokenizer --out runs/tiny-image/shards \\
        --scenes 200000

In settings things are no stamps of codes, so scenes are rendered and encoded: some 10 ms each on one core, 35 minutes
for 200,000. A shard is written whole or not at all and depends on its number alone: a run that was stopped goes on, and
several may fill one folder with `--first` and `--every`. Training may begin as soon as there is one shard.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from polydraft.apps.train.image.data import (
    begun,
    encoded,
    list_objects,
    open_tokenizer,
    outline,
    packed_scene,
    to_pixels,
)
from polydraft.apps.train.image.posterior import Bools, Codes, Floats
from polydraft.apps.train.image.starting import starting_laws
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.world.painting.matte import matted
from polydraft.modalities.world.scene import place, to_bytes
from polydraft.modalities.world.words.captions import describe
from polydraft.modalities.world.worlds import TEXTURED

SCENES = 1000  # a shard
WORDINGS = 4  # captions a scene
PACKED = 0.3  # share of packed scenes in shards
TOGETHER = 16  # scenes encoded at once
WAIT = 2.0  # seconds between looks for a first shard


@dataclass(frozen=True)
class Told:
    """A scene. captions: several wordings. codes: `[H/8, W/8]`. choices, chances: `[CELLS, 1 + MOST]`, what could have
    been (`starting.py`). packed: whether it only lists its objects. begun: which cells belong to things that can be
    seen by then, `[H/8, W/8]`. things: as `outline` has them.
    """

    captions: list[str]
    codes: Codes
    choices: Codes
    chances: Floats
    packed: bool
    begun: Bools
    things: Codes


class Source(Protocol):
    """Where scenes come from."""

    def next(self, packed: float) -> Told:
        """A scene; a share `packed` of them, where it can be chosen, is packed."""


class Live:
    """Scenes rendered now."""

    def __init__(self, vq: VQTokenizer, seed: int, held_out: bool = False) -> None:
        self.vq, self.rng, self.held_out = vq, np.random.default_rng(seed), held_out
        self.ready: list[Told] = []

    def next(self, packed: float) -> Told:
        if not self.ready:
            self.ready = self.draw(TOGETHER, packed)
        return self.ready.pop()

    @torch.no_grad()
    def draw(self, number: int, packed: float) -> list[Told]:
        crowded = (self.rng.random(number) < packed).tolist()
        asked = [None if full else TEXTURED.composition(self.rng, self.held_out) for full in crowded]
        scenes = [place(one, self.rng) if one else packed_scene(self.rng, 24, TEXTURED.settings) for one in asked]
        captions = [
            [describe(one, self.rng) if one else list_objects(scene, self.rng) for _ in range(WORDINGS)]
            for one, scene in zip(asked, scenes, strict=True)
        ]
        layers = [scene.layers() for scene in scenes]
        codes = self.encode(to_pixels([to_bytes(matted(*parts)) for parts in layers]))
        grounds = [picture for picture, _ in layers]
        laws = starting_laws(asked, scenes, grounds, codes, self.encode, self.rng)
        within, things = [begun(scene) for scene in scenes], [outline(scene) for scene in scenes]
        return [Told(*told) for told in zip(captions, codes, *laws, crowded, within, things, strict=True)]

    def encode(self, pixels: Tensor) -> Codes:
        """Codes `[B, H/8, W/8]` of pictures `[B, 3, H, W]`."""
        return encoded(self.vq, pixels)

    def draw_many(self, number: int, packed: float) -> list[Told]:
        return [told for _ in range(0, number, TOGETHER) for told in self.draw(TOGETHER, packed)][:number]


class Shards:
    """Scenes from a folder, in a new order every time round; shards that come meanwhile are read the next time."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, np.random.default_rng(seed)
        self.scenes = self.endless()

    def next(self, packed: float) -> Told:
        while (told := next(self.scenes)).packed and self.rng.random() > packed / PACKED:
            pass
        return told

    def endless(self) -> Iterator[Told]:
        while True:
            while not (found := sorted(self.folder.glob("*.npz"))):
                time.sleep(WAIT)
            for path in self.rng.permutation(np.array(found, dtype=object)):
                with np.load(path) as stored:
                    codes, captions = stored["codes"].astype(np.int64), json.loads(str(stored["captions"]))
                    choices, chances = stored["choices"].astype(np.int64), stored["chances"].astype(np.float32)
                    packed, within, things = stored["packed"], stored["begun"], stored["things"].astype(np.int64)
                for at in self.rng.permutation(len(codes)):
                    laws = choices[at], chances[at]
                    yield Told(captions[at], codes[at], *laws, bool(packed[at]), within[at], things[at])


def write(path: Path, scenes: list[Told]) -> None:
    """One shard, whole or not at all."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez_compressed(
            file, codes=np.stack([told.codes for told in scenes]).astype(np.uint16),
            choices=np.stack([told.choices for told in scenes]).astype(np.uint16),
            chances=np.stack([told.chances for told in scenes]),
            packed=np.array([told.packed for told in scenes]), begun=np.stack([told.begun for told in scenes]),
            things=np.stack([told.things for told in scenes]).astype(np.int16),
            captions=np.array(json.dumps([told.captions for told in scenes])),
        )  # fmt: skip
    part.rename(path)


def run(tokenizer: Path, out: Path, scenes: int, seed: int = 0, first: int = 0, every: int = 1) -> None:
    """Write every so manieth shard from the first on, until there are `scenes` in all; those that exist stay."""
    vq = open_tokenizer(tokenizer)
    if vq.config.codebook_size > np.iinfo(np.uint16).max + 1:
        raise InvalidArgument("shards hold 16-bit codes; use a codebook of at most 65,536.")
    out.mkdir(parents=True, exist_ok=True)
    begun, made = time.monotonic(), 0
    for index in itertools.islice(range(-(-scenes // SCENES)), first, None, every):
        path = out / f"{seed:03d}-{index:05d}.npz"
        if path.exists():
            continue
        # shards of the same number hold the same scenes, whoever writes them
        source = Live(vq, int(np.random.SeedSequence((seed, index)).generate_state(1)[0]))
        write(path, source.draw_many(SCENES, PACKED))
        made += 1
        print(f"{time.monotonic() - begun:6.0f}s {path.name}, {made * SCENES} scenes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenes", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    torch.set_num_threads(1)  # the other core is for whoever trains
    run(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
