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

from polydraft.apps.train.image.data import Codes, encoded, open_tokenizer, to_pixels
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image import plan
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.output import whole
from polydraft.modalities.world.scene import place
from polydraft.modalities.world.words.captions import describe
from polydraft.modalities.world.worlds import TEXTURED

SCENES = 1000  # a shard
WORDINGS = 4  # captions a scene
TOGETHER = 16  # scenes encoded at once
WAIT = 2.0  # seconds between looks for a first shard


@dataclass(frozen=True)
class Told:
    """A scene. captions: several wordings. plan: its words. codes: `[H/8, W/8]`."""

    captions: list[str]
    plan: list[str]
    codes: Codes


class Source(Protocol):
    """Where scenes come from."""

    def next(self) -> Told:
        """A scene."""


class Live:
    """Scenes rendered now."""

    def __init__(self, vq: VQTokenizer, seed: int, held_out: bool = False) -> None:
        self.vq, self.rng, self.held_out = vq, np.random.default_rng(seed), held_out
        self.ready: list[Told] = []

    def next(self) -> Told:
        if not self.ready:
            self.ready = self.draw(TOGETHER)
        return self.ready.pop()

    @torch.no_grad()
    def draw(self, number: int) -> list[Told]:
        asked = [TEXTURED.composition(self.rng, self.held_out) for _ in range(number)]
        scenes = [place(one, self.rng) for one in asked]
        captions = [[describe(one, self.rng) for _ in range(WORDINGS)] for one in asked]
        codes = encoded(self.vq, to_pixels([scene.matted() for scene in scenes]))
        return [Told(told, plan.of(scene), drawn) for told, scene, drawn in zip(captions, scenes, codes, strict=True)]

    def draw_many(self, number: int) -> list[Told]:
        return [told for _ in range(0, number, TOGETHER) for told in self.draw(TOGETHER)][:number]


class Shards:
    """Scenes from a folder, in a new order every time round; shards that come meanwhile are read the next time."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, np.random.default_rng(seed)
        self.scenes = self.endless()

    def next(self) -> Told:
        return next(self.scenes)

    def endless(self) -> Iterator[Told]:
        while True:
            while not (found := sorted(self.folder.glob("*.npz"))):
                time.sleep(WAIT)
            for path in self.rng.permutation(np.array(found, dtype=object)):
                with np.load(path) as stored:
                    codes = stored["codes"].astype(np.int64)
                    captions, plans = json.loads(str(stored["captions"])), json.loads(str(stored["plans"]))
                for at in self.rng.permutation(len(codes)):
                    yield Told(captions[at], plans[at], codes[at])


def write(path: Path, scenes: list[Told]) -> None:
    """One shard, whole or not at all."""
    with whole(path) as file:
        np.savez_compressed(
            file, codes=np.stack([told.codes for told in scenes]).astype(np.uint16),
            captions=np.array(json.dumps([told.captions for told in scenes])),
            plans=np.array(json.dumps([told.plan for told in scenes])),
        )  # fmt: skip


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
        write(path, source.draw_many(SCENES))
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
