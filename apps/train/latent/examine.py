"""How well the head of `tiny-latent` begins things: its draws after held-out scenes, beside draws by the law itself.

    python -m polydraft.apps.train.latent.examine --runs assets/models/tiny-latent --scenes 64

The folder has `target/`, `head/` and `vae/`. Told are places by the chance that something begins there: how many draws
are no background, and how many of these are nothing that could begin. The law draws by the same chain; what it begins
with a faint edge counts as background for both. Guidance is not used.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from polydraft.apps.bench.measure.table import sheet_of
from polydraft.apps.train.latent.data import GlyphLatents, LatentBatch, LatentBatches
from polydraft.apps.train.latent.draw import chain, chain_of
from polydraft.apps.train.latent.lessons import Rows, posterior_mean
from polydraft.apps.train.latent.model import LatentModel
from polydraft.apps.train.latent.stages import read
from polydraft.core.model.precision import mixed
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.image.latent.head import LatentHead

AWAY = 6.0  # standard deviations of a token's noise that a draw may be from what it is
DRAWS = 16  # a place
RANGES = {"none": (-1.0, 0.0), "up to .02": (0.0, 0.02), "up to .3": (0.02, 0.3), "above": (0.3, 1.0)}
HEADERS = ["chance", "places", "begun, expected", "by the head", "not possible", "by the law", "not possible"]


@dataclass(frozen=True)
class Places(Rows):
    """Where something may begin by a law that is whole, or no more may: features `[N, D]`, could `[N, K, C]` and
    chances `[N, K]` as in `LatentBatch`, the first of them for background."""

    features: Tensor
    could: Tensor
    chances: Tensor

    @staticmethod
    def of(batch: LatentBatch, features: Tensor) -> Places:
        some = batch.whole | batch.over
        return Places(features[some], batch.could[some], batch.chances[some])

    @property
    def begins(self) -> Tensor:
        """`[N]`, the chance that something does."""
        return self.chances[:, 1:].sum(1)


@torch.no_grad()
def by_head(head: LatentHead, there: Places) -> Tensor:
    """`[N, DRAWS, C]`."""
    with mixed():
        condition = head.condition(there.features).repeat_interleave(DRAWS, 0)
        return chain(head, condition[None, None], torch.ones(1))[0].float().view(-1, DRAWS, head.size)


def by_law(head: LatentHead, there: Places) -> Tensor:
    """`[N, DRAWS, C]`, by the chain of a head that says the law's posterior mean."""

    def mean(x: Tensor, step: int) -> Tensor:
        sigma = torch.tensor([head.config.levels[step]])
        return head.towards(x, step, posterior_mean(x, sigma, there.could, there.chances))

    return chain_of(head, mean, (len(there.could), DRAWS, head.size))


def judged(head: LatentHead, there: Places, drawn: Tensor) -> tuple[int, int]:
    """How many of `drawn` `[N, S, C]` are no background, and how many of these nothing that could begin."""
    apart = (drawn[:, :, None] - there.could[:, None]).norm(dim=-1)
    apart = apart.masked_fill(there.chances[:, None] <= 0, torch.inf)
    begun = (drawn - there.could[:, None, 0]).norm(dim=-1) > AWAY * head.noise
    return int(begun.sum()), int((begun & (apart.amin(-1) > AWAY * head.noise)).sum())


def run(runs: Path, scenes: int, seed: int = 99) -> list[list[str]]:
    """The table's rows, printed."""
    torch.manual_seed(seed)
    glyphs = GlyphLatents(LatentAutoencoder.from_folder(runs / "vae").float())
    model = LatentModel.from_folders(runs / "target", runs / "head").eval()
    everywhere = read(Places.of, model, LatentBatches(glyphs, seed, held_out=True, drop=0.0), scenes)
    rows = []
    for name, (low, high) in RANGES.items():
        there = everywhere.some((everywhere.begins > low) & (everywhere.begins <= high))
        found = [judged(model.head, there, drawn) for drawn in (by_head(model.head, there), by_law(model.head, there))]
        expected = DRAWS * there.begins.sum().item()
        rows.append([name, str(len(there.could)), f"{expected:.0f}", *(str(count) for pair in found for count in pair)])
    print(sheet_of(HEADERS, rows), flush=True)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--scenes", type=int, default=64)
    parser.add_argument("--seed", type=int, default=99)
    run(**vars(parser.parse_args()))
