"""`polydraft bench latents`: acceptance of drafted latents by step of the chain and by noise levels.

polydraft bench latents --model tiny-latent --method eagle --prompts 8 -o runs/bench

Images are generated with shared noise while a drafter predicts one latent ahead; the hidden states of both at the same
position are recorded. Their chains are then sampled again with other noise, shared and coupled, under several noise
levels. The speedup by coordinates per token is in `coordinates.py`.
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

from polydraft.apps.data.captions import held_out, settings
from polydraft.apps.lab.bench.coordinates import measure_by_coordinates
from polydraft.apps.measure import plots, report
from polydraft.apps.measure.decoding import decoded
from polydraft.apps.measure.environment import environment
from polydraft.apps.terminal.terminal import note
from polydraft.core.continuous.coupled import coupled_trajectories
from polydraft.core.continuous.denoising import LatentDistribution, LatentSampler
from polydraft.core.continuous.drafters import LatentChainDrafter
from polydraft.core.draft import Draft
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.params import SamplingTensors
from polydraft.modalities.image.latent.pipeline import LatentImagePipeline
from polydraft.modalities.loading import load
from polydraft.modalities.pipeline import uses_cfg

SEED = 7


@dataclass(frozen=True)
class RecordingLatentSampler(LatentSampler):
    """Sampler that records the hidden states [B, R, D] of the first scored position."""

    hidden_states: list[Tensor] = field(default_factory=list)

    def __call__(
        self, hidden: Tensor, settings: SamplingTensors, history: GenerationContext | None = None
    ) -> LatentDistribution:
        self.hidden_states.append(hidden[:, 0])
        return super().__call__(hidden, settings, history)


@dataclass(frozen=True)
class DistributionPair:
    """Distributions of target and drafter at N positions, [1, N] each."""

    target: LatentDistribution
    drafted: LatentDistribution

    def agreement_with_shared_noise(self) -> Tensor:
        """Return [T, N, C] bool: coordinates that agree after every step with shared noise."""
        noise, t = (
            self.noise(on_tape=True),
            torch.arange(self.num_positions, device=self.target.processed_outputs.device)[None],
        )
        states = zip(
            self.target.shared_noise_states(noise.at_positions(t)),
            self.drafted.shared_noise_states(noise.at_positions(t)),
            strict=True,
        )
        return torch.stack([(mine == other)[0] for mine, other in states])

    def agreement_when_coupled(self) -> Tensor:
        """Return [T, N] bool: coupled chains that still agree after every step."""
        noise = self.noise(on_tape=False)
        walk = self.drafted.sample_trajectory(self.drafted.draw_normals(noise))
        target = replace(
            self.target,
            processed_outputs=torch.cat([self.target.processed_outputs, self.target.processed_outputs[:, :1]], 1),
        )
        draft = Draft.from_chain(walk.latents, q=walk)
        return torch.stack([agrees[0] for _, agrees in coupled_trajectories(target, noise, draft)])

    @property
    def num_positions(self) -> int:
        return self.target.processed_outputs.shape[1]

    def noise(self, on_tape: bool) -> Noise:
        zero = torch.zeros(1, dtype=torch.long, device=self.target.processed_outputs.device)
        return Noise(zero + SEED, zero, zero, zero.bool(), [1.0], 0, on_tape)


def load_latent_pipeline(model: str) -> LatentImagePipeline:
    """Load a model of latents; raise UnsupportedMethod for a model of codes."""
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
    pipe = load_latent_pipeline(model)
    pair = record_pair(pipe, method, prompts, temperature, guidance_scale)
    levels_of_model = tuple(pipe.head.config.levels)
    rows = [row_of(pipe, pair, levels) for levels in (levels_of_model, *other_levels(levels_of_model))]
    pipe.head.set_levels(levels_of_model)
    by_step = {
        "tape": agreement_rates(pair.agreement_with_shared_noise().all(-1)),
        "coupled": agreement_rates(pair.agreement_when_coupled()),
    }
    image_prompts = pipe.build_prompts(held_out(prompts)[0], sampling=settings(pipe, temperature, guidance_scale))
    fastest = pipe.default_method
    note(f"drawing {prompts} pictures plainly and with {fastest.name}")
    widths = measure_by_coordinates(pipe, fastest, image_prompts)
    value = {
        "model": pipe.card.name, "method": method, "prompts": prompts, "places": pair.num_positions, "rows": rows,
        "by_step": by_step, "default": fastest.name, "by_coordinates": [asdict(width) for width in widths],
        "environment": environment(pipe.device, pipe.dtype),
    }  # fmt: skip
    sheet = (["levels", "steps", "tape", "coupled"], [cells_of(row) for row in rows])
    steps = ["step", *map(str, range(1, 1 + len(levels_of_model[1:])))]
    step_rows = [[name, *(f"{share:.3f}" for share in found)] for name, found in by_step.items()]
    coordinate_rows = [[str(w.coordinates), f"{w.tau:.2f}", f"{w.passes:.0f}", f"{w.speedup:.2f}"] for w in widths]
    coordinates = (["coordinates a token", "τ", "passes a picture", "S"], coordinate_rows)
    report.tell(
        "latents", value, [sheet, (steps, step_rows), coordinates], [], lambda: plot_curves(value), output, json
    )


def record_pair(
    pipe: LatentImagePipeline, name: str, prompts: int, temperature: float | None, guidance_scale: float | None
) -> DistributionPair:
    """Generate with drafts of one latent, and record the distributions of both models at the same positions."""
    sampling = settings(pipe, temperature, guidance_scale)
    image_prompts = pipe.build_prompts(held_out(prompts)[0], sampling=sampling)
    method = pipe.method(pipe.parse_method(f"{name}(depth=1)"), uses_cfg(image_prompts))
    if not isinstance(method.drafter, LatentChainDrafter):
        raise UnsupportedMethod(f"method {name!r} has no chain of its own; use one of draft, eagle, early-exit.")
    target, drafter = RecordingLatentSampler(pipe.head), RecordingLatentSampler(method.drafter.sampler.chain)
    note(f"drawing {prompts} pictures with {name}")
    decoded(replace(method, sampler=target, drafter=replace(method.drafter, sampler=drafter)), image_prompts)
    scale = torch.tensor([sampling.guidance_scale], device=pipe.device)
    temperatures = torch.tensor([sampling.temperature], device=pipe.device)
    distributions = [
        LatentDistribution(each.chain, torch.cat(each.hidden_states)[None], scale, temperatures)
        for each in (target, drafter)
    ]
    return DistributionPair(*distributions)


def other_levels(levels_of_model: Sequence[float]) -> list[tuple[float, ...]]:
    """Return other noise levels between the same ends: other numbers of log-uniform steps, and steps nearer the end."""
    first, last = levels_of_model[0], levels_of_model[-1]

    def spaced(steps: int, bend: float = 1.0) -> tuple[float, ...]:
        return tuple(first * (last / first) ** ((step / steps) ** bend) for step in range(steps + 1))

    return [spaced(3), spaced(4), spaced(6), spaced(8), spaced(12), spaced(16), spaced(6, 0.7), spaced(6, 1.4)]


def row_of(pipe: LatentImagePipeline, pair: DistributionPair, levels: Sequence[float]) -> dict[str, Any]:
    """Measure the acceptance of one latent with these noise levels."""
    for head in {id(distribution.chain): distribution.chain for distribution in (pair.target, pair.drafted)}.values():
        head.set_levels(tuple(levels))  # type: ignore[attr-defined]
    return {
        "levels": list(levels), "steps": len(levels) - 1,
        "tape": pair.agreement_with_shared_noise()[-1].all(-1).float().mean().item(),
        "coupled": pair.agreement_when_coupled()[-1].float().mean().item(),
    }  # fmt: skip


def agreement_rates(agrees: Tensor) -> list[float]:
    """Return the rate of agreement [T, N] bool by step."""
    return [float(share) for share in agrees.float().mean(1)]


def cells_of(row: dict[str, Any]) -> list[str]:
    levels = " ".join(f"{level:.2f}" for level in row["levels"])
    return [levels, str(row["steps"]), f"{row['tape']:.3f}", f"{row['coupled']:.3f}"]


def plot_curves(value: dict[str, Any]) -> Image.Image:
    """Plot agreement after every step; acceptance by noise levels; S and τ by coordinates per token."""
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
