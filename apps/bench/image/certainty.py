"""`polydraft bench certainty`: how sure a model is of its codes, on things and on the ground that they stand on.

polydraft bench certainty --n 32 --world textured --temperature 1

Drawn plainly; where things are is what the matcher finds in the finished picture. A world in which most codes are
certain says little about methods: there any draft is right (see `entropy` and `sure` of the ground).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from polydraft.apps.bench.image.prompts import held_out, settings, world_of
from polydraft.apps.bench.measure import plots, report
from polydraft.apps.bench.measure.decoding import decoded
from polydraft.apps.bench.measure.environment import environment
from polydraft.apps.bench.measure.table import PLAIN
from polydraft.apps.bench.measure.watched import Watched
from polydraft.apps.commands.shared.terminal import note
from polydraft.apps.train.image.data import belonging
from polydraft.core.drafters.base import Outcome
from polydraft.core.errors import UnsupportedModel
from polydraft.core.state import State
from polydraft.modalities.image.families.tiny import TinyImage
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load
from polydraft.modalities.pipeline import guided
from polydraft.modalities.world.worlds import World

SURE = 0.9
TOGETHER = 8


@dataclass
class Certainty(Watched):
    """Keeps the entropy and the highest chance of every law of plain decoding, `[B]` a pass."""

    entropy: list[Tensor] = field(default_factory=list)
    highest: list[Tensor] = field(default_factory=list)

    def observe(self, state: State, own: Any, outcome: Outcome) -> None:
        chances = outcome.law.logp[:, 0].float().exp()
        self.entropy.append(torch.special.entr(chances).sum(-1).cpu())
        self.highest.append(chances.amax(-1).cpu())
        super().observe(state, own, outcome)


def run(
    *, n: int, model: str, temperature: float | None, min_p: float | None, guidance_scale: float | None,
    world: str | None, output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    pipe = load(model)
    if not isinstance(pipe, ImagePipeline) or not isinstance(pipe.family, TinyImage):
        raise UnsupportedModel(f"{pipe.card.name} draws no codes of the emoji world; use --model tiny-image.")
    among, sampling = world_of(pipe, world), settings(pipe, temperature, guidance_scale, min_p=min_p)
    captions, _ = held_out(n, among)
    entropy, highest, things = [], [], []
    for first in range(0, n, TOGETHER):
        some = captions[first : first + TOGETHER]
        prompts = pipe.prompts_to_ids(some, list(range(first, first + len(some))), sampling)
        method = pipe.method(pipe.parsed(PLAIN), guided(prompts))
        watched = Certainty(method.drafter)
        drawn = decoded(replace(method, drafter=watched), prompts, len(prompts))
        codes = pipe.family.placed >= 0
        entropy.append(torch.stack(watched.entropy, 1)[:, codes])
        highest.append(torch.stack(watched.highest, 1)[:, codes])
        pictures = pipe.decode_images(pipe.drawn(prompts, drawn.outputs))
        things.append(torch.from_numpy(np.stack([found(among, np.asarray(each)) for each in pictures])).flatten(1))
        note(f"{min(first + TOGETHER, n)}/{n} pictures")
    laws = torch.cat(entropy), torch.cat(highest)
    on = torch.cat(things)
    parts = {"things": told(*laws, on), "ground": told(*laws, ~on)}
    value = {
        "model": pipe.card.name, "world": among.name, "n": n, "temperature": sampling.temperature,
        "min_p": sampling.min_p, "guidance_scale": sampling.guidance_scale,
        "environment": environment(pipe.device, pipe.dtype),
    }  # fmt: skip
    rows = [
        [name, str(part["codes"]), f"{part['entropy']:.2f}", f"{100 * part['sure']:.0f} %"]
        for name, part in parts.items()
    ]  # fmt: skip
    table: report.Sheet = ["codes of", "codes", "nats a code", f"p ≥ {SURE}"], rows
    report.tell("certainty", value | parts, [table], [], lambda: picture(laws[0], on), output, json)


def found(among: World, picture: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """`[H/8, W/8]`: cells of the things that the matcher finds."""
    return belonging(among.find(picture)[0].objects)


def told(entropy: Tensor, highest: Tensor, where: Tensor) -> dict[str, Any]:
    """Means over codes `where` `[n, T]`."""
    return {
        "codes": int(where.sum()), "entropy": float(entropy[where].mean()),
        "sure": float((highest[where] >= SURE).float().mean()),
    }  # fmt: skip


def picture(entropy: Tensor, on: Tensor) -> Image.Image:
    """How entropies of codes are spread."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    bins = np.linspace(0, max(1.0, float(entropy.max())), 40).tolist()
    for name, where in (("things", on), ("ground", ~on)):
        axes.hist(entropy[where].tolist(), bins=bins, density=True, histtype="step", label=name)
    axes.set(xlabel="nats of a code's law", ylabel="density")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return plots.rendered(figure)
