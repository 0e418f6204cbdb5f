"""Compare the starts of objects by the head of `tiny-latent` with those by the exact distribution, on held-out scenes.

    python -m polydraft.apps.lab.recipes.latent.evaluate_starts --runs assets/models/tiny-latent --scenes 64

The folder has `target/`, `head/` and `vae/`. Printed are cells by the probability that an object starts there: how many
samples are not background, and how many of these are no object that may start. The exact distribution is sampled by the
same chain; a faint first edge counts as background for both. Guidance is not used.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from polydraft.apps.lab.recipes.latent.data import GlyphLatents, LatentBatch, LatentBatches
from polydraft.apps.lab.recipes.latent.generate import run_chain, sample_chain
from polydraft.apps.lab.recipes.latent.model import LatentModel
from polydraft.apps.lab.recipes.latent.stages import compute_examples
from polydraft.apps.lab.recipes.latent.training_targets import TokenRows, posterior_mean
from polydraft.apps.measure.table import sheet_of
from polydraft.core.model.precision import mixed_precision
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.image.latent.head import LatentHead

AWAY = 6.0  # standard deviations of a token's noise that a sample may be from its candidate
DRAWS = 16  # per cell
RANGES = {"none": (-1.0, 0.0), "up to .02": (0.0, 0.02), "up to .3": (0.02, 0.3), "above": (0.3, 1.0)}
HEADERS = ["chance", "places", "begun, expected", "by the head", "not possible", "by the law", "not possible"]


@dataclass(frozen=True)
class StartCells(TokenRows):
    """Cells where an object may start by an exact distribution, or none may."""

    features: Tensor  # [N, D]
    candidates: Tensor  # [N, K, C], the first is background
    probs: Tensor  # [N, K]

    @staticmethod
    def from_batch(batch: LatentBatch, features: Tensor) -> StartCells:
        mask = batch.is_exact | batch.is_finished
        return StartCells(features[mask], batch.candidates[mask], batch.candidate_probs[mask])

    @property
    def start_probs(self) -> Tensor:
        """Return the probability [N] that an object starts."""
        return self.probs[:, 1:].sum(1)


@torch.no_grad()
def sample_head(head: LatentHead, cells: StartCells) -> Tensor:
    """Sample latents [N, DRAWS, C] by the head."""
    with mixed_precision():
        condition = head.condition(cells.features).repeat_interleave(DRAWS, 0)
        return sample_chain(head, condition[None, None], torch.ones(1))[0].float().view(-1, DRAWS, head.latent_size)


def sample_posterior(head: LatentHead, cells: StartCells) -> Tensor:
    """Sample latents [N, DRAWS, C] by the chain with exact posterior means."""

    def mean(x: Tensor, step: int) -> Tensor:
        sigma = torch.tensor([head.config.levels[step]])
        return head.mean_towards(x, step, posterior_mean(x, sigma, cells.candidates, cells.probs))

    return run_chain(head, mean, (len(cells.candidates), DRAWS, head.latent_size))


def count_starts(head: LatentHead, cells: StartCells, latents: Tensor) -> tuple[int, int]:
    """Count the samples [N, S, C] that are not background, and those of them that are no object that may start."""
    distances = (latents[:, :, None] - cells.candidates[:, None]).norm(dim=-1)
    distances = distances.masked_fill(cells.probs[:, None] <= 0, torch.inf)
    is_start = (latents - cells.candidates[:, None, 0]).norm(dim=-1) > AWAY * head.noise
    return int(is_start.sum()), int((is_start & (distances.amin(-1) > AWAY * head.noise)).sum())


def run(runs: Path, scenes: int, seed: int = 99) -> list[list[str]]:
    """Measure, print and return the rows of the table."""
    torch.manual_seed(seed)
    glyphs = GlyphLatents(LatentAutoencoder.from_folder(runs / "vae").float())
    model = LatentModel.from_folders(runs / "target", runs / "head").eval()
    all_cells = compute_examples(
        StartCells.from_batch, model, LatentBatches(glyphs, seed, held_out=True, drop=0.0), scenes
    )
    rows = []
    for name, (low, high) in RANGES.items():
        cells = all_cells.select((all_cells.start_probs > low) & (all_cells.start_probs <= high))
        samples = sample_head(model.head, cells), sample_posterior(model.head, cells)
        found = [count_starts(model.head, cells, latents) for latents in samples]
        expected = DRAWS * cells.start_probs.sum().item()
        rows.append(
            [name, str(len(cells.candidates)), f"{expected:.0f}", *(str(count) for pair in found for count in pair)]
        )
    print(sheet_of(HEADERS, rows), flush=True)
    return rows


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--scenes", type=int, default=64)
    parser.add_argument("--seed", type=int, default=99)
    run(**vars(parser.parse_args()))
