"""What image benches ask for: captions no model was ever trained on, the same for everyone, at settings that fit.

captions, compositions = held_out(200)
prompts = pipe.prompts_to_ids(captions, sampling=settings(pipe, temperature=1.0))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polydraft.apps.bench.measure.table import PLAIN
from polydraft.core.sampling import Sampling
from polydraft.modalities.image.pipeline import PicturePipeline
from polydraft.modalities.world.captions import describe
from polydraft.modalities.world.scene import Composition, random_composition

SEED = 2024


def held_out(count: int) -> tuple[list[str], list[Composition]]:
    """The first `count` of one endless list."""
    rng = np.random.default_rng(SEED)
    compositions, captions = [], []
    for _ in range(count):
        compositions.append(random_composition(rng, held_out=True))
        captions.append(describe(compositions[-1], rng))
    return captions, compositions


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
