"""What image benches ask for: captions no model was ever trained on, the same for everyone, at settings that fit.

captions, compositions = held_out(200)
captions = own("coco.txt")      # what a user's file asks for
prompts = pipe.prompts_to_ids(captions, sampling=settings(pipe, temperature=1.0))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polydraft.apps.bench.measure.table import PLAIN
from polydraft.apps.train.own.lessons import words
from polydraft.apps.train.own.rows import TEXTS, rows
from polydraft.core.errors import DataUnavailable, InvalidArgument
from polydraft.core.law.sampling import Sampling
from polydraft.modalities.image.pipeline import PicturePipeline
from polydraft.modalities.world.scene import Composition
from polydraft.modalities.world.words.captions import describe
from polydraft.modalities.world.worlds import FLAT, WORLDS, World

SEED = 2024
OTHERS = 10**6  # seeds of a second plain run begin here


def held_out(count: int, world: World = FLAT) -> tuple[list[str], list[Composition]]:
    """The first `count` of one endless list a world."""
    rng = np.random.default_rng(SEED)
    compositions, captions = [], []
    for _ in range(count):
        compositions.append(world.composition(rng, held_out=True))
        captions.append(describe(compositions[-1], rng))
    return captions, compositions


def own(data: str) -> list[str]:
    """All captions of a user's file or folder, read as drafters' training reads it; raises DataUnavailable."""
    captions: list[str] = [words(row).content["text"] for row in rows(data, TEXTS)]
    if not captions:
        raise DataUnavailable(f"{data} has no captions; write one on every line.")
    return captions


def world_of(pipe: PicturePipeline, name: str | None) -> World:
    """The world of that name, whose words the model has to know; by default the model's own."""
    asked = WORLDS[name] if name else pipe.card.world
    if unknown := sorted({*asked.backgrounds} - {*pipe.card.world.backgrounds}):
        raise InvalidArgument(f"{pipe.card.name} can't draw {unknown[0]}; use --world {pipe.card.world.name}.")
    return asked


def texts_of(pipe: PicturePipeline, data: str | None, world: str | None, count: int) -> tuple[list[str], str | None]:
    """All captions of the user's `data`, or `count` held-out ones and the name of their world."""
    if data is not None and world is not None:
        raise InvalidArgument("--captions and --world exclude each other; leave one out.")
    if data is not None:
        return own(data), None
    among = world_of(pipe, world)
    return held_out(count, among)[0], among.name


def settings(
    pipe: PicturePipeline,
    temperature: float | None = None,
    guidance_scale: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
) -> Sampling:
    """The model's own sampling and guidance, or others where given; refuses what drawing refuses, by the same rules."""
    asked: dict[str, Any] = {
        "temperature": temperature, "top_k": top_k, "min_p": min_p, "guidance_scale": guidance_scale,
    }  # fmt: skip
    pipe.stream("a cat", method=PLAIN, **asked).close()
    return pipe.sampling(**asked)
