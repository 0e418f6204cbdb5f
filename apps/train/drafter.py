"""Train a drafter for an image model: `polydraft train drafter --target tiny-image --kind lm --out runs/drafter-lm`.

Half of the sequences are the target's own: captions of training compositions, drawn with the target's default settings
and kept in `--out`, so a stopped run resumes with them. The other half are rendered scenes, which the target has learnt
to write and which cost nothing to make; on both the student matches the target's whole law.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from polydraft.apps.train.image_data import Batches
from polydraft.core.drafters.eagle import EagleNetwork
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.fit import best_spread
from polydraft.core.methods import parse
from polydraft.core.sampling import Sampling
from polydraft.core.training import distill, eagle
from polydraft.core.training.distill import Examples, collect, distil, shallow_copy_of
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import causal_lm, load
from polydraft.modalities.world.captions import describe
from polydraft.modalities.world.scene import random_composition

ROWS = 32
LM_LAYERS = 2


@dataclass(frozen=True)
class Recipe:
    """How a kind of drafter is made: the untrained student, its loss, and its law beside the target's."""

    student: Callable[[PreTrainedModel], Any]
    loss: Callable[[PreTrainedModel, Any, Examples], Tensor]
    laws: Callable[[PreTrainedModel, Any, Examples], tuple[Tensor, Tensor]]


KINDS = {
    "lm": Recipe(lambda target: shallow_copy_of(target, LM_LAYERS), distill.divergence, distill.laws),
    "eagle": Recipe(lambda target: EagleNetwork(target.config), eagle.continuation, eagle.laws),
}


def run(target: str, kind: str, out: Path, minutes: float, seed: int = 0) -> None:
    """A quarter of the time draws with the target, the rest distils. Raises UnsupportedMethod for an unknown kind."""
    if kind not in KINDS:
        raise UnsupportedMethod(f"drafters of kind {kind!r} cannot be trained; use one of {', '.join(KINDS)}.")
    pipe = load(target)
    prompts, codes = draw(pipe, out, minutes / 4, seed)
    # drawing has packed the pipeline's weights; training reads them as they were
    recipe, model = KINDS[kind], causal_lm(pipe.card.path / "target", pipe.device, pipe.dtype)
    student = recipe.student(model)
    held = slice(-ROWS, None)  # never trained on
    kept = Examples.join([tuple(prompt) for prompt in prompts[held]], list(codes[held]))
    own = batches(pipe, prompts[:-ROWS], codes[:-ROWS], seed)
    source = itertools.chain.from_iterable(zip(own, rendered(pipe, seed), strict=True))
    curve = distil(
        partial(recipe.loss, model), student, source, minutes=minutes * 3 / 4, folder=out,
        validate=lambda: kept,
    )  # fmt: skip
    (out / "curve.json").write_text(json.dumps(curve))
    with torch.no_grad():
        spread = best_spread(*recipe.laws(model, student, kept))
    (out / "fitted.json").write_text(json.dumps({"spread": round(spread, 3)}))


def draw(pipe: ImagePipeline, out: Path, minutes: float, seed: int) -> tuple[list[list[int]], Tensor]:
    """Prompts and generated ids `[N, T]`: at least two batches, then until `minutes` are over; kept in `out`."""
    folder = out / "samples"
    folder.mkdir(parents=True, exist_ok=True)
    settings = Sampling(**{name: pipe.defaults[name] for name in ("temperature", "top_k", "top_p")})
    method = pipe.method(parse("ar"), settings, pipe.defaults["guidance_scale"])
    begun = time.monotonic()
    budget = round(minutes * 60)
    with tqdm(total=budget, unit="s", desc="draw with the target") as bar:
        for index in itertools.count():
            path = folder / f"{index:04d}.safetensors"
            spent = len(list(folder.glob("*.json"))) >= 2 and time.monotonic() - begun > budget
            if not path.exists():
                if spent:
                    break
                rng = np.random.default_rng([seed, index])
                captions = [describe(random_composition(rng), rng) for _ in range(ROWS)]
                rows = pipe.prompts_to_ids(captions, [10**6 + index * ROWS + row for row in range(ROWS)])
                save_file({"ids": torch.stack(collect(method, rows)).to(torch.int32)}, path)
                path.with_suffix(".json").write_text(json.dumps([list(row.branches[0]) for row in rows]))
            bar.update(min(budget, round(time.monotonic() - begun)) - round(bar.n))
    files = sorted(folder.glob("*.json"))
    prompts = [prompt for file in files for prompt in json.loads(file.read_text())]
    return prompts, torch.cat([load_file(file.with_suffix(".safetensors"))["ids"].long() for file in files])


def batches(pipe: ImagePipeline, prompts: list[list[int]], codes: Tensor, seed: int) -> Iterator[Examples]:
    """Endless shuffled batches; one prompt in ten is the unconditional one, for guidance."""
    rng = np.random.default_rng(seed)
    empty = pipe.prompts_to_ids([""])[0].branches[1]
    while True:
        picked = rng.choice(len(prompts), 16)
        chosen = [empty if rng.random() < 0.1 else tuple(prompts[row]) for row in picked]
        yield Examples.join(chosen, list(codes[torch.from_numpy(picked)]))


def rendered(pipe: ImagePipeline, seed: int) -> Iterator[Examples]:
    """Endless batches of rendered training scenes."""
    scenes = Batches(pipe.card.path / "tokenizer", seed + 1)
    while True:
        batch = scenes.next(16)
        yield Examples(batch.ids, torch.nn.functional.pad(batch.chances[:, 1:].any(-1), (0, 1)))
