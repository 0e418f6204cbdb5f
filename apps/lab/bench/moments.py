"""`polydraft bench moments`: compare the moments of drafted latents with those of plain ones at every position.

polydraft bench moments --method eagle+coupled --prompts 200 -o runs/bench

An exact method samples other latents of the same distribution, so no tokens can be compared. Captions are generated
plainly and with the method, with different seeds, and compared in pairs: first and second moments of every coordinate
at every position, and whether images show what was asked. If the distributions are equal, the order in a pair is
random: so the largest difference is compared with those of pairs swapped at random (a randomisation test; Romano and
Wolf 2005, "Exact and approximate stepdown methods for multiple hypothesis testing"). Intervals are a bootstrap's, over
captions.
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

from polydraft.apps.data.captions import held_out, settings
from polydraft.apps.lab.bench.latents import load_latent_pipeline
from polydraft.apps.lab.judging.matcher import judge_flat_image
from polydraft.apps.measure import plots, report
from polydraft.apps.measure.decoding import draw
from polydraft.apps.measure.environment import environment
from polydraft.apps.measure.table import PLAIN
from polydraft.apps.terminal.terminal import progress
from polydraft.core.stats import DecodeStats
from polydraft.modalities.image.latent.pipeline import LatentImagePipeline
from polydraft.modalities.world.scene import Composition

TOGETHER = 16  # images per batch
APART = 10**6  # offset of the method's seeds from those of plain decoding
DRAWS = 1000  # samples of the bootstrap, and of swapped pairs
SURE = 0.95
HEADERS = ["", "plain", "method", "largest difference", "bound", "outside 95 %", "agree"]


@dataclass(frozen=True)
class Agreement:
    """Agreement of paired samples, from differences [N, cells]."""

    cells: int
    largest: float  # difference in standard errors
    bound: float  # of the largest difference by chance
    outside: float  # share of cells whose bootstrap interval excludes 0, about 0.05 by chance

    @property
    def agree(self) -> bool:
        return self.largest <= self.bound


@dataclass(frozen=True)
class GeneratedLatents:
    """Generated latents of all captions."""

    latents: Tensor  # [N, T, C]
    is_correct: NDArray[np.float64]  # [N], 1 where an image shows what was asked
    stats: DecodeStats


def run(
    *, prompts: int, method: str, model: str, temperature: float | None, guidance_scale: float | None, seed: int,
    output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Generate, compare, print and, given a folder, save."""
    report.check_folder(output)
    pipe = load_latent_pipeline(model)
    pipe.check_method(method)
    held_out_captions = held_out(prompts)
    sampling = settings(pipe, temperature, guidance_scale)
    plain = generate(pipe, PLAIN, *held_out_captions, seed, sampling)
    other = generate(pipe, method, *held_out_captions, seed + APART, sampling)
    differences = z_scores(first_two_moments(other.latents) - first_two_moments(plain.latents))
    found = compare_pairs(first_two_moments(other.latents) - first_two_moments(plain.latents))
    fidelity = compare_pairs(torch.as_tensor(other.is_correct - plain.is_correct)[:, None])
    value = {
        "model": pipe.card.name, "method": method, "guarantee": other.stats.guarantee, "prompts": prompts,
        "seed": seed, "sampling": asdict(sampling), "tau": other.stats.mean_accepted_length,
        "moments": asdict(found) | {"agree": found.agree},
        "fidelity": asdict(fidelity) | {
            "agree": fidelity.agree, "plain": float(plain.is_correct.mean()), "method": float(other.is_correct.mean()),
        },
        "by_place": differences.view(2, pipe.image_tokens, -1).abs().amax(2).tolist(),
        "environment": environment(pipe.device, pipe.dtype),
    }  # fmt: skip
    sheet = (HEADERS, [
        ["latent moments", "", "", *format_agreement(found)],
        [
            "images right", f"{plain.is_correct.mean():.3f}", f"{other.is_correct.mean():.3f}",
            *format_agreement(fidelity),
        ],
    ])  # fmt: skip
    report.tell("moments", value, [sheet], [], lambda: plot_maps(value, pipe.grid), output, json)


def generate(
    pipe: LatentImagePipeline,
    method: str,
    captions: list[str],
    compositions: list[Composition],
    seed: int,
    sampling: Any,
) -> GeneratedLatents:
    """Generate an image per caption and judge it."""
    latents, is_correct, parts = [], [], []
    with progress(f"drawing with {method}", "pictures") as advance:
        for first in range(0, len(captions), TOGETHER):
            batch_captions = captions[first : first + TOGETHER]
            held_out_captions = pipe.build_prompts(
                batch_captions, [seed + first + row for row in range(len(batch_captions))], sampling
            )
            done = draw(pipe, method, held_out_captions, TOGETHER)
            assert done.stats is not None
            parts.append(done.stats)
            latents_of_batch = pipe.assemble_tokens(held_out_captions, done.outputs)
            latents.append(latents_of_batch)
            pairs = zip(pipe.decode_images(latents_of_batch), compositions[first : first + TOGETHER], strict=True)
            is_correct += [float(judge_flat_image(np.asarray(picture), wanted).ok) for picture, wanted in pairs]
            advance(len(is_correct), len(captions), sum(part.target_passes for part in parts))
    return GeneratedLatents(torch.cat(latents), np.array(is_correct), DecodeStats.sum_runs(parts))


def first_two_moments(latents: Tensor) -> Tensor:
    """Return [N, 2 · T · C] float64: every coordinate of latents [N, T, C], then its square."""
    flat = latents.double().flatten(1)
    return torch.cat([flat, flat.square()], 1)


def z_scores(differences: Tensor, signs: Tensor | None = None) -> Tensor:
    """Return mean differences [S, cells] in standard errors, of pairs [N, cells] swapped by signs [S, N]."""
    count = len(differences)
    swaps = torch.ones(1, count, dtype=differences.dtype) if signs is None else signs
    mean = swaps @ differences / count
    spread = (differences.square().mean(0) - mean.square()).clamp(min=1e-300) / max(1, count - 1)
    return torch.where(mean == 0, 0, mean / spread.sqrt())


def compare_pairs(differences: Tensor) -> Agreement:
    """Test the differences of pairs [N, cells]."""
    generator = torch.Generator().manual_seed(0)
    count, scores = len(differences), z_scores(differences)
    signs = torch.randint(0, 2, (DRAWS, count), generator=generator).double() * 2 - 1
    chance = z_scores(differences, signs).abs().amax(1)
    picked = torch.randint(0, count, (DRAWS, count), generator=generator)
    counts = torch.zeros(DRAWS, count, dtype=torch.float64).scatter_add_(1, picked, torch.ones_like(picked).double())
    edges = torch.tensor([(1 - SURE) / 2, (1 + SURE) / 2], dtype=torch.float64)
    low, high = (counts @ differences / count).quantile(edges, dim=0)
    outside = ((low > 0) | (high < 0)).double().mean()
    return Agreement(differences.shape[1], float(scores.abs().max()), float(chance.quantile(SURE)), float(outside))


def format_agreement(found: Agreement) -> list[str]:
    shares = [f"{found.largest:.2f} SE", f"{found.bound:.2f} SE", f"{100 * found.outside:.1f} %"]
    return [*shares, "yes" if found.agree else "no"]


def plot_maps(value: dict[str, Any], grid: tuple[int, int]) -> Image.Image:
    """Plot the largest difference at every position, of means and of squares."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    for axes, title, places in zip(figure.subplots(1, 2), ("means", "squares"), value["by_place"], strict=True):
        fidelity = axes.imshow(np.array(places).reshape(grid), vmin=0, vmax=value["moments"]["bound"])
        axes.set(title=f"{title}, differences in standard errors", xticks=[], yticks=[])
    figure.colorbar(fidelity)
    return plots.rendered(figure)
