"""`polydraft bench latents`: how often a drafted latent is accepted, by step of its chain and noise, and what drafting
gains by coordinates a token (`coordinates.py`).

polydraft bench latents --model tiny-latent --method eagle --prompts 8 -o runs/bench

Pictures are drawn plainly on the tape while a drafter guesses one latent ahead; the hidden states of both at the same
place are kept. Their chains are then drawn again with other noise, on the tape and coupled, under several noise levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from polydraft.apps.bench.image.coordinates import by_coordinates
from polydraft.apps.bench.image.prompts import held_out, settings
from polydraft.apps.bench.measure import plots, report
from polydraft.apps.bench.measure.decoding import decoded
from polydraft.apps.bench.measure.environment import environment
from polydraft.apps.commands.shared.terminal import note
from polydraft.core.draft import Draft
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.latent.coupled import beside
from polydraft.core.latent.drafters import LatentChainDrafter
from polydraft.core.latent.law import LatentLaw, LatentSampler
from polydraft.core.law.history import History
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Settings
from polydraft.modalities.image.latent.pipeline import LatentImagePipeline
from polydraft.modalities.loading import load
from polydraft.modalities.pipeline import guided

SEED = 7


@dataclass(frozen=True)
class Heard(LatentSampler):
    """Keeps the hidden states that laws are made of, of the first column `[B, R, D]`."""

    found: list[Tensor] = field(default_factory=list)

    def __call__(self, hidden: Tensor, settings: Settings, history: History | None = None) -> LatentLaw:
        self.found.append(hidden[:, 0])
        return super().__call__(hidden, settings, history)


@dataclass(frozen=True)
class Pair:
    """The laws of target and drafter at N places, `[1, N]` each."""

    target: LatentLaw
    drafted: LatentLaw

    def on_tape(self) -> Tensor:
        """`[T, N, C]` bool: coordinates that agree after every step."""
        noise, t = self.noise(on_tape=True), torch.arange(self.places, device=self.target.given.device)[None]
        states = zip(self.target.taped(noise.at(t)), self.drafted.taped(noise.at(t)), strict=True)
        return torch.stack([(mine == other)[0] for mine, other in states])

    def coupled(self) -> Tensor:
        """`[T, N]` bool: chains that still agree after every step."""
        noise = self.noise(on_tape=False)
        walk = self.drafted.walked(self.drafted.normals(noise))
        alone = replace(self.target, given=torch.cat([self.target.given, self.target.given[:, :1]], 1))
        draft = Draft.of_chain(walk.latents, q=walk)
        return torch.stack([agrees[0] for _, agrees in beside(alone, noise, draft)])

    @property
    def places(self) -> int:
        return self.target.given.shape[1]

    def noise(self, on_tape: bool) -> Noise:
        zero = torch.zeros(1, dtype=torch.long, device=self.target.given.device)
        return Noise(zero + SEED, zero, zero, zero.bool(), [1.0], 0, on_tape)


def of_latents(model: str) -> LatentImagePipeline:
    """Raises UnsupportedMethod for a model of codes."""
    pipe = load(model)
    if not isinstance(pipe, LatentImagePipeline):
        raise UnsupportedMethod(f"{pipe.card.name} generates {pipe.registry.tokens}; give a model of latents.")
    return pipe


def run(
    *, prompts: int, method: str, model: str, temperature: float | None, guidance_scale: float | None,
    output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    pipe = of_latents(model)
    pair = heard(pipe, method, prompts, temperature, guidance_scale)
    own = tuple(pipe.head.config.levels)
    rows = [row_of(pipe, pair, levels) for levels in (own, *others(own))]
    pipe.head.set_levels(own)
    by_step = {"tape": shares(pair.on_tape().all(-1)), "coupled": shares(pair.coupled())}
    asked = pipe.prompts_to_ids(held_out(prompts)[0], sampling=settings(pipe, temperature, guidance_scale))
    fastest = pipe.default_method
    note(f"drawing {prompts} pictures plainly and with {fastest.name}")
    widths = by_coordinates(pipe, fastest, asked)
    value = {
        "model": pipe.card.name, "method": method, "prompts": prompts, "places": pair.places, "rows": rows,
        "by_step": by_step, "default": fastest.name, "by_coordinates": [asdict(width) for width in widths],
        "environment": environment(pipe.device, pipe.dtype),
    }  # fmt: skip
    sheet = (["levels", "steps", "tape", "coupled"], [cells_of(row) for row in rows])
    steps = ["step", *map(str, range(1, 1 + len(own[1:])))]
    agreeing = [[name, *(f"{share:.3f}" for share in found)] for name, found in by_step.items()]
    wide = [[str(w.coordinates), f"{w.tau:.2f}", f"{w.passes:.0f}", f"{w.speedup:.2f}"] for w in widths]
    coordinates = (["coordinates a token", "τ", "passes a picture", "S"], wide)
    report.tell("latents", value, [sheet, (steps, agreeing), coordinates], [], lambda: curves(value), output, json)


def heard(
    pipe: LatentImagePipeline, name: str, prompts: int, temperature: float | None, guidance_scale: float | None
) -> Pair:
    """Draw with drafts of one latent, and keep what both said of the same places."""
    sampling = settings(pipe, temperature, guidance_scale)
    asked = pipe.prompts_to_ids(held_out(prompts)[0], sampling=sampling)
    method = pipe.method(pipe.parsed(f"{name}(depth=1)"), guided(asked))
    if not isinstance(method.drafter, LatentChainDrafter):
        raise UnsupportedMethod(f"method {name!r} has no chain of its own; use one of draft, eagle, early-exit.")
    target, drafter = Heard(pipe.head), Heard(method.drafter.sampler.chain)
    note(f"drawing {prompts} pictures with {name}")
    decoded(replace(method, sampler=target, drafter=replace(method.drafter, sampler=drafter)), asked)
    scale = torch.tensor([sampling.guidance_scale], device=pipe.device)
    heat = torch.tensor([sampling.temperature], device=pipe.device)
    laws = [LatentLaw(each.chain, torch.cat(each.found)[None], scale, heat) for each in (target, drafter)]
    return Pair(*laws)


def others(own: Sequence[float]) -> list[tuple[float, ...]]:
    """Other noise levels between the same ends: fewer and more steps, evenly in the logarithm; steps nearer the end."""
    first, last = own[0], own[-1]

    def spaced(steps: int, bend: float = 1.0) -> tuple[float, ...]:
        return tuple(first * (last / first) ** ((step / steps) ** bend) for step in range(steps + 1))

    return [spaced(3), spaced(4), spaced(6), spaced(8), spaced(12), spaced(16), spaced(6, 0.7), spaced(6, 1.4)]


def row_of(pipe: LatentImagePipeline, pair: Pair, levels: Sequence[float]) -> dict[str, Any]:
    """Acceptance of one latent with these levels."""
    for head in {id(law.chain): law.chain for law in (pair.target, pair.drafted)}.values():
        head.set_levels(tuple(levels))  # type: ignore[attr-defined]
    return {
        "levels": list(levels), "steps": len(levels) - 1,
        "tape": pair.on_tape()[-1].all(-1).float().mean().item(), "coupled": pair.coupled()[-1].float().mean().item(),
    }  # fmt: skip


def shares(agrees: Tensor) -> list[float]:
    """Of `[T, N]` bool, by step."""
    return [float(share) for share in agrees.float().mean(1)]


def cells_of(row: dict[str, Any]) -> list[str]:
    levels = " ".join(f"{level:.2f}" for level in row["levels"])
    return [levels, str(row["steps"]), f"{row['tape']:.3f}", f"{row['coupled']:.3f}"]


def curves(value: dict[str, Any]) -> Image.Image:
    """Agreement after every step; acceptance by noise levels; S and τ by coordinates a token."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for name, found in value["by_step"].items():
        left.plot(range(1, 1 + len(found)), found, marker="o", label=name)
    left.set(xlabel="step of the chain", ylabel="chains that agree", ylim=(0, 1))
    left.legend(frameon=False)
    for name, style in (("tape", "o"), ("coupled", "x")):
        middle.plot([row["steps"] for row in value["rows"]], [row[name] for row in value["rows"]], style, label=name)
    middle.set(xlabel="steps, at several noise levels", ylabel="latents accepted", ylim=(0, 1))
    middle.legend(frameon=False)
    widths = value["by_coordinates"]
    for name, label, colour in (("speedup", "S", "S"), ("tau", "τ", "tau")):
        places, found = [width["coordinates"] for width in widths], [width[name] for width in widths]
        right.plot(places, found, marker="o", color=plots.COLOURS[colour], label=label)
    right.set_xscale("log", base=2)
    right.set(xlabel=f"coordinates a token, {value['default']}", ylim=(0, None))
    right.legend(frameon=False)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    return plots.rendered(figure)
