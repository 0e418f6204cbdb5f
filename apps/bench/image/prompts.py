"""What image benches ask for: captions no model was ever trained on, the same for everyone, at settings that fit.

captions, compositions = held_out(200)
prompts = pipe.prompts_to_ids(captions, sampling=settings(pipe, temperature=1.0))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polydraft.apps.bench.measure.table import PLAIN
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling import Sampling
from polydraft.modalities.image.pipeline import PicturePipeline
from polydraft.modalities.world.captions import describe
from polydraft.modalities.world.scene import Composition
from polydraft.modalities.world.worlds import FLAT, WORLDS, World

SEED = 2024


def held_out(count: int, world: World = FLAT) -> tuple[list[str], list[Composition]]:
    """The first `count` of one endless list a world."""
    rng = np.random.default_rng(SEED)
    compositions, captions = [], []
    for _ in range(count):
        compositions.append(world.composition(rng, held_out=True))
        captions.append(describe(compositions[-1], rng))
    return captions, compositions


def world_of(pipe: PicturePipeline, name: str | None) -> World:
    """The world of that name, whose words the model has to know; by default the model's own."""
    asked = WORLDS[name] if name else pipe.card.world
    if unknown := sorted({*asked.backgrounds} - {*pipe.card.world.backgrounds}):
        raise InvalidArgument(f"{pipe.card.name} can't draw {unknown[0]}; use --world {pipe.card.world.name}.")
    return asked


def settings(
    pipe: PicturePipeline,
    temperature: float | None = None,
    guidance_scale: float | None = None,
    top_k: int | None = None,
) -> Sampling:
    """The model's own sampling and guidance, or others where given; refuses what drawing refuses, by the same rules."""
    asked: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "guidance_scale": guidance_scale}
    pipe.stream("a cat", method=PLAIN, **asked).close()
    return pipe.sampling(**asked)
