"""`polydraft bench moments`: whether drafted latents have the moments of plain ones, place by place.

polydraft bench moments --method eagle+coupled --prompts 200 -o runs/bench

An exact method draws other latents of the same law, so there is no seed to compare. Captions are drawn plainly and with
the method, by other seeds, and compared in pairs: first and second moments of every coordinate at every place, and
whether pictures show what was asked. Were the laws one, which of a pair is which would be chance: so the largest
difference of all is judged against those of pairs turned round at random (a randomisation test; Romano and Wolf 2005,
"Exact and approximate stepdown methods for multiple hypothesis testing"). Intervals are a bootstrap's, over captions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from polydraft.apps.bench.image.latents import of_latents
from polydraft.apps.bench.image.prompts import held_out, settings
from polydraft.apps.bench.measure import plots, report
from polydraft.apps.bench.measure.decoding import draw
from polydraft.apps.bench.measure.environment import environment
from polydraft.apps.bench.measure.table import PLAIN
from polydraft.apps.commands.shared.terminal import progress
from polydraft.core.stats import DecodeStats
from polydraft.modalities.image.latent.pipeline import LatentImagePipeline
from polydraft.modalities.world.judging.matcher import fidelity
from polydraft.modalities.world.scene import Composition

TOGETHER = 16  # pictures a batch
APART = 10**6  # seeds of the method are so far from those of plain decoding
DRAWS = 1000  # of the bootstrap, and pairs turned round
SURE = 0.95
HEADERS = ["", "plain", "method", "largest difference", "bound", "outside 95 %", "agree"]


@dataclass(frozen=True)
class Agreement:
    """Of differences `[N, cells]` of pairs: the largest in standard errors and what it stays under by chance, and the
    share of cells whose bootstrap interval leaves 0 out, which is about 0.05 by chance."""

    cells: int
    largest: float
    bound: float
    outside: float

    @property
    def agree(self) -> bool:
        return self.largest <= self.bound


@dataclass(frozen=True)
class Drawn:
    """latents: `[N, T, C]`; right: `[N]`, 1 where a picture shows what was asked."""

    latents: Tensor
    right: NDArray[np.float64]
    stats: DecodeStats


def run(
    *, prompts: int, method: str, model: str, temperature: float | None, guidance_scale: float | None, seed: int,
    output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Draw, compare, print and, given a folder, save."""
    report.check_folder(output)
    pipe = of_latents(model)
    pipe.checked(method)
    asked = held_out(prompts)
    heat = settings(pipe, temperature, guidance_scale)
    plain = drawn(pipe, PLAIN, *asked, seed, heat)
    other = drawn(pipe, method, *asked, seed + APART, heat)
    apart = z_scores(moments(other.latents) - moments(plain.latents))
    found = agreement(moments(other.latents) - moments(plain.latents))
    shown = agreement(torch.as_tensor(other.right - plain.right)[:, None])
    value = {
        "model": pipe.card.name, "method": method, "guarantee": other.stats.guarantee, "prompts": prompts,
        "seed": seed, "sampling": asdict(heat), "tau": other.stats.mean_accepted_length,
        "moments": asdict(found) | {"agree": found.agree},
        "fidelity": asdict(shown) | {
            "agree": shown.agree, "plain": float(plain.right.mean()), "method": float(other.right.mean()),
        },
        "by_place": apart.view(2, pipe.image_tokens, -1).abs().amax(2).tolist(),
        "environment": environment(pipe.device, pipe.dtype),
    }  # fmt: skip
    sheet = (HEADERS, [
        ["latent moments", "", "", *figures(found)],
        ["pictures right", f"{plain.right.mean():.3f}", f"{other.right.mean():.3f}", *figures(shown)],
    ])  # fmt: skip
    report.tell("moments", value, [sheet], [], lambda: maps(value, pipe.grid), output, json)


def drawn(
    pipe: LatentImagePipeline, method: str, captions: list[str], compositions: list[Composition], seed: int, heat: Any
) -> Drawn:
    """One picture a caption."""
    latents, right, parts = [], [], []
    with progress(f"drawing with {method}", "pictures") as advance:
        for first in range(0, len(captions), TOGETHER):
            some = captions[first : first + TOGETHER]
            asked = pipe.prompts_to_ids(some, [seed + first + row for row in range(len(some))], heat)
            done = draw(pipe, method, asked, TOGETHER)
            assert done.stats is not None
            parts.append(done.stats)
            made = pipe.drawn(asked, done.outputs)
            latents.append(made)
            pairs = zip(pipe.decode_images(made), compositions[first : first + TOGETHER], strict=True)
            right += [float(fidelity(np.asarray(picture), wanted).ok) for picture, wanted in pairs]
            advance(len(right), len(captions), sum(part.target_passes for part in parts))
    return Drawn(torch.cat(latents), np.array(right), DecodeStats.in_sequence(parts))


def moments(latents: Tensor) -> Tensor:
    """`[N, 2 · T · C]` float64: every coordinate, then its square, of latents `[N, T, C]`."""
    flat = latents.double().flatten(1)
    return torch.cat([flat, flat.square()], 1)


def z_scores(apart: Tensor, signs: Tensor | None = None) -> Tensor:
    """`[S, cells]`: mean differences in their standard errors, of pairs `[N, cells]` turned round by signs `[S, N]`."""
    count = len(apart)
    turned = torch.ones(1, count, dtype=apart.dtype) if signs is None else signs
    mean = turned @ apart / count
    spread = (apart.square().mean(0) - mean.square()).clamp(min=1e-300) / max(1, count - 1)
    return torch.where(mean == 0, 0, mean / spread.sqrt())


def agreement(apart: Tensor) -> Agreement:
    """Of differences of pairs `[N, cells]`."""
    generator = torch.Generator().manual_seed(0)
    count, own = len(apart), z_scores(apart)
    signs = torch.randint(0, 2, (DRAWS, count), generator=generator).double() * 2 - 1
    chance = z_scores(apart, signs).abs().amax(1)
    picked = torch.randint(0, count, (DRAWS, count), generator=generator)
    counts = torch.zeros(DRAWS, count, dtype=torch.float64).scatter_add_(1, picked, torch.ones_like(picked).double())
    edges = torch.tensor([(1 - SURE) / 2, (1 + SURE) / 2], dtype=torch.float64)
    low, high = (counts @ apart / count).quantile(edges, dim=0)
    outside = ((low > 0) | (high < 0)).double().mean()
    return Agreement(apart.shape[1], float(own.abs().max()), float(chance.quantile(SURE)), float(outside))


def figures(found: Agreement) -> list[str]:
    shares = [f"{found.largest:.2f} SE", f"{found.bound:.2f} SE", f"{100 * found.outside:.1f} %"]
    return [*shares, "yes" if found.agree else "no"]


def maps(value: dict[str, Any], grid: tuple[int, int]) -> Image.Image:
    """The largest difference at every place, of means and of squares."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    for axes, title, places in zip(figure.subplots(1, 2), ("means", "squares"), value["by_place"], strict=True):
        shown = axes.imshow(np.array(places).reshape(grid), vmin=0, vmax=value["moments"]["bound"])
        axes.set(title=f"{title}, differences in standard errors", xticks=[], yticks=[])
    figure.colorbar(shown)
    return plots.rendered(figure)
