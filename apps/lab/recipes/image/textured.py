"""Captions and codes of textured scenes: rendered and encoded when needed, or ahead of time into shards.

    python -m polydraft.apps.lab.recipes.image.textured --tokenizer runs/tiny-image/tokenizer \\
        --out runs/tiny-image/shards --scenes 200000

In settings scenes cannot be assembled from codes of glyphs, so they are rendered and encoded: some 10 ms each on one
core, 35 minutes for 200,000. A shard is written atomically and depends on its number alone: an interrupted run resumes,
and several processes may fill one folder with `--first` and `--every`. Training may start with the first shard.
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

from polydraft.apps.lab.recipes.image.data import Codes, encode_images, images_to_tensor, load_vq_tokenizer
from polydraft.core.errors import InvalidArgument
from polydraft.core.folders.atomic_files import atomic_file
from polydraft.modalities.image import scene_plan as plan
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.world.scene import place_objects
from polydraft.modalities.world.words.captions import write_caption
from polydraft.modalities.world.worlds import TEXTURED

SCENES = 1000  # per shard
WORDINGS = 4  # captions per scene
TOGETHER = 16  # scenes encoded at once
WAIT = 2.0  # seconds between looks for a first shard


@dataclass(frozen=True)
class EncodedScene:
    """Captions, plan and codes of a scene."""

    captions: list[str]  # several wordings
    plan: list[str]  # words
    codes: Codes  # [H/8, W/8]


class SceneSource(Protocol):
    """Endless source of textured scenes."""

    def next_scene(self) -> EncodedScene:
        """Return the next scene."""


class LiveScenes:
    """Scenes rendered on demand."""

    def __init__(self, vq: VQTokenizer, seed: int, held_out: bool = False) -> None:
        self.vq: VQTokenizer = vq
        self.rng: np.random.Generator = np.random.default_rng(seed)
        self.held_out: bool = held_out
        self.ready: list[EncodedScene] = []

    def next_scene(self) -> EncodedScene:
        if not self.ready:
            self.ready = self.render(TOGETHER)
        return self.ready.pop()

    @torch.no_grad()
    def render(self, number: int) -> list[EncodedScene]:
        asked = [TEXTURED.random_composition(self.rng, self.held_out) for _ in range(number)]
        scenes = [place_objects(one, self.rng) for one in asked]
        captions = [[write_caption(one, self.rng) for _ in range(WORDINGS)] for one in asked]
        codes = encode_images(self.vq, images_to_tensor([scene.render_on_matte() for scene in scenes]))
        return [
            EncodedScene(wordings, plan.plan_for_scene(scene), scene_codes)
            for wordings, scene, scene_codes in zip(captions, scenes, codes, strict=True)
        ]

    def render_many(self, number: int) -> list[EncodedScene]:
        return [scene for _ in range(0, number, TOGETHER) for scene in self.render(TOGETHER)][:number]


class ShardedScenes:
    """Scenes from a folder of shards, shuffled in every epoch; shards added meanwhile are read in the next epoch."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder: Path = folder
        self.rng: np.random.Generator = np.random.default_rng(seed)
        self.scenes: Iterator[EncodedScene] = self.iterate()

    def next_scene(self) -> EncodedScene:
        return next(self.scenes)

    def iterate(self) -> Iterator[EncodedScene]:
        while True:
            while not (paths := sorted(self.folder.glob("*.npz"))):
                time.sleep(WAIT)
            for path in self.rng.permutation(np.array(paths, dtype=object)):
                with np.load(path) as stored:
                    codes = stored["codes"].astype(np.int64)
                    captions, plans = json.loads(str(stored["captions"])), json.loads(str(stored["plans"]))
                for at in self.rng.permutation(len(codes)):
                    yield EncodedScene(captions[at], plans[at], codes[at])


def write_shard(path: Path, scenes: list[EncodedScene]) -> None:
    """Write a shard atomically."""
    with atomic_file(path) as file:
        np.savez_compressed(
            file, codes=np.stack([scene.codes for scene in scenes]).astype(np.uint16),
            captions=np.array(json.dumps([scene.captions for scene in scenes])),
            plans=np.array(json.dumps([scene.plan for scene in scenes])),
        )  # fmt: skip


def run(tokenizer: Path, out: Path, scenes: int, seed: int = 0, first: int = 0, every: int = 1) -> None:
    """Write every `every`-th shard from number `first` on, up to `scenes` in all; existing shards are kept."""
    vq = load_vq_tokenizer(tokenizer)
    if vq.config.codebook_size > np.iinfo(np.uint16).max + 1:
        raise InvalidArgument("shards hold 16-bit codes; use a codebook of at most 65,536.")
    out.mkdir(parents=True, exist_ok=True)
    start_time, num_written = time.monotonic(), 0
    for index in itertools.islice(range(-(-scenes // SCENES)), first, None, every):
        path = out / f"{seed:03d}-{index:05d}.npz"
        if path.exists():
            continue
        # Shards of the same number hold the same scenes, whichever process writes them.
        source = LiveScenes(vq, int(np.random.SeedSequence((seed, index)).generate_state(1)[0]))
        write_shard(path, source.render_many(SCENES))
        num_written += 1
        print(f"{time.monotonic() - start_time:6.0f}s {path.name}, {num_written * SCENES} scenes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenes", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    torch.set_num_threads(1)  # the other core is left to training
    run(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
