"""`polydraft bench fidelity`: share of images that show what was asked, by the matcher, on held-out compositions.

polydraft bench fidelity --n 200 -o runs/bench
polydraft bench fidelity --n 24 --phrasing "show me a picture of {}"
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from polydraft.apps.data.captions import held_out, world_of
from polydraft.apps.lab.bench.texture import TextureBench
from polydraft.apps.lab.judging.matcher import FidelityResult
from polydraft.apps.lab.judging.world_judge import judge_fidelity
from polydraft.apps.measure import report, shares
from polydraft.apps.measure.environment import environment
from polydraft.apps.terminal.terminal import note
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.params import SamplingParams
from polydraft.modalities.loading import load

CAPTION = "{}"  # in a phrasing
PARTS = ("ok", "objects", "count", "relation", "background", "clean")


def run(
    *, n: int, method: str | None, model: str, temperature: float | None, top_p: float | None,
    min_p: float | None, guidance_scale: float | None, seed: int, world: str | None, phrasing: str,
    output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Generate, judge, print and, given a folder, save results and a sheet of the first images."""
    report.check_folder(output)
    if CAPTION not in phrasing:
        raise InvalidArgument(f"--phrasing {phrasing!r} has no place for a caption; put {CAPTION} into it.")
    pipe: Any = load(model)
    options: dict = {
        "method": method, "temperature": temperature, "top_p": top_p, "min_p": min_p, "guidance_scale": guidance_scale,
    }  # fmt: skip
    world_of_captions = world_of(pipe, world)
    captions, compositions = held_out(n, world_of_captions)
    taken_on = environment(pipe.device, pipe.dtype)
    pictures: list[Image.Image] = []
    verdicts: list[FidelityResult] = []
    for first in range(0, n, shares.TOGETHER):
        prompts = [phrasing.replace(CAPTION, caption) for caption in captions[first : first + shares.TOGETHER]]
        result = pipe(prompts, seed=seed + first, **options)
        pictures += result.images
        pairs = zip(result.images, compositions[first : first + shares.TOGETHER], strict=True)
        verdicts += [judge_fidelity(world_of_captions, np.asarray(picture), wanted) for picture, wanted in pairs]
        right = sum(verdict.ok for verdict in verdicts)
        note(f"{len(verdicts)}/{n} pictures, {right / len(verdicts):.3f} show what was asked")
    defaults = {
        name: value for name, value in pipe.defaults.items() if name in options or name in asdict(SamplingParams())
    }
    value: dict = {
        "model": pipe.card.name, "world": world_of_captions.name, "n": n, "seed": seed, "phrasing": phrasing,
        "environment": taken_on,
        "settings": defaults | {name: value for name, value in options.items() if value is not None},
    }  # fmt: skip
    if textures := TextureBench(compositions):
        value["texture"] = textures.measure(pictures)
        note("texture {distance:.2f}, of two rendered sets {scale:.2f}, power {power}".format(**value["texture"]))
    parts = [{part: getattr(verdict, part) for part in PARTS} for verdict in verdicts]
    shares.tell("fidelity", value, parts, captions, pictures, output, json)
