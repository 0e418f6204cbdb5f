"""Captions of image benchmarks: held out from training, the same for everyone, with fitting settings.

captions, compositions = held_out(200)
prompts = pipe.prompts_to_ids(captions, sampling=settings(pipe, temperature=1.0))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polydraft.apps.data.user_requests import BenchImage, read_image_requests
from polydraft.apps.measure.table import PLAIN
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.params import SamplingParams
from polydraft.modalities.image.pipeline import TextToImagePipeline
from polydraft.modalities.world.scene import Composition
from polydraft.modalities.world.words.captions import write_caption
from polydraft.modalities.world.worlds import FLAT, WORLDS, World

SEED = 2024
OTHERS = 10**6  # seeds of a second plain run begin here


def held_out(count: int, world: World = FLAT) -> tuple[list[str], list[Composition]]:
    """Return the first `count` of one endless list per world."""
    rng = np.random.default_rng(SEED)
    compositions, captions = [], []
    for _ in range(count):
        compositions.append(world.random_composition(rng, held_out=True))
        captions.append(write_caption(compositions[-1], rng))
    return captions, compositions


def world_of(pipe: TextToImagePipeline, name: str | None) -> World:
    """Return the named world, whose words the model has to know; by default the model's own."""
    asked = WORLDS[name] if name else pipe.card.world
    if unknown := sorted({*asked.backgrounds} - {*pipe.card.world.backgrounds}):
        raise InvalidArgument(f"{pipe.card.name} can't draw {unknown[0]}; use --world {pipe.card.world.name}.")
    return asked


def image_requests(
    pipe: TextToImagePipeline, data: str | None, world: str | None, count: int
) -> tuple[list[BenchImage], str | None]:
    """Return all that the user's `data` asks for, or `count` held-out captions and the name of their world."""
    if data is not None and world is not None:
        raise InvalidArgument("--data and --world exclude each other; leave one out.")
    if data is not None:
        return read_image_requests(data), None
    among = world_of(pipe, world)
    return [BenchImage(text, seed) for seed, text in enumerate(held_out(count, among)[0])], among.name


def settings(
    pipe: TextToImagePipeline,
    temperature: float | None = None,
    guidance_scale: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
) -> SamplingParams:
    """Return the model's sampling and guidance, or the given ones; refuses what image generation refuses."""
    asked: dict[str, Any] = {
        "temperature": temperature, "top_k": top_k, "min_p": min_p, "guidance_scale": guidance_scale,
    }  # fmt: skip
    pipe.stream("a cat", method=PLAIN, **asked).close()
    return pipe.sampling_params(**asked)
