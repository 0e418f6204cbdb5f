"""`polydraft bench fidelity`: how many pictures show what was asked, by the matcher, on compositions never trained on.

polydraft bench fidelity --n 200 -o runs/bench
polydraft bench fidelity --n 24 --phrasing "show me a picture of {}"
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from polydraft.apps.bench.image.judging.texture import TextureBench
from polydraft.apps.bench.image.prompts import held_out, world_of
from polydraft.apps.bench.measure import report, shares
from polydraft.apps.bench.measure.environment import environment
from polydraft.apps.commands.shared.terminal import note
from polydraft.core.errors import InvalidArgument
from polydraft.core.law.sampling import Sampling
from polydraft.modalities.loading import load
from polydraft.modalities.world.judging.matcher import Verdict

CAPTION = "{}"  # in a phrasing
PARTS = ("ok", "objects", "count", "relation", "background", "clean")


def run(
    *, n: int, method: str | None, model: str, temperature: float | None, top_p: float | None,
    min_p: float | None, guidance_scale: float | None, seed: int, world: str | None, phrasing: str,
    output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Draw, judge, print and, given a folder, save figures and a sheet of the first pictures."""
    report.check_folder(output)
    if CAPTION not in phrasing:
        raise InvalidArgument(f"--phrasing {phrasing!r} has no place for a caption; put {CAPTION} into it.")
    pipe = load(model)
    asked: dict = {
        "method": method, "temperature": temperature, "top_p": top_p, "min_p": min_p, "guidance_scale": guidance_scale,
    }  # fmt: skip
    among = world_of(pipe, world)
    captions, compositions = held_out(n, among)
    taken_on = environment(pipe.device, pipe.dtype)
    pictures: list[Image.Image] = []
    verdicts: list[Verdict] = []
    for first in range(0, n, shares.TOGETHER):
        prompts = [phrasing.replace(CAPTION, caption) for caption in captions[first : first + shares.TOGETHER]]
        drawn = pipe(prompts, seed=seed + first, **asked)
        pictures += drawn.images
        together = zip(drawn.images, compositions[first : first + shares.TOGETHER], strict=True)
        verdicts += [among.fidelity(np.asarray(picture), wanted) for picture, wanted in together]
        right = sum(verdict.ok for verdict in verdicts)
        note(f"{len(verdicts)}/{n} pictures, {right / len(verdicts):.3f} show what was asked")
    defaults = {name: value for name, value in pipe.defaults.items() if name in asked or name in asdict(Sampling())}
    value: dict = {
        "model": pipe.card.name, "world": among.name, "n": n, "seed": seed, "phrasing": phrasing,
        "environment": taken_on,
        "settings": defaults | {name: value for name, value in asked.items() if value is not None},
    }  # fmt: skip
    if textures := TextureBench(compositions):
        value["texture"] = textures.measured(pictures)
        note("texture {distance:.2f}, of two rendered sets {scale:.2f}, power {power}".format(**value["texture"]))
    parts = [{part: getattr(verdict, part) for part in PARTS} for verdict in verdicts]
    shares.tell("fidelity", value, parts, captions, pictures, output, json)
