"""Counts of object starts: samples of the exact distribution match it, and impossible samples are counted."""

from __future__ import annotations

import torch

from polydraft.apps.lab.recipes.latent.data import GlyphLatents, LatentBatches
from polydraft.apps.lab.recipes.latent.evaluate_starts import (
    DRAWS,
    StartCells,
    count_starts,
    sample_head,
    sample_posterior,
)
from polydraft.modalities.image.latent.head import LatentHead, LatentHeadConfig

HEAD = LatentHeadConfig(size=3, hidden=16, width=16, blocks=1, embedding=8, time=8)


def start_cells(count: int) -> StartCells:
    """Return cells where one of two objects starts with probability 0.3; the last candidate has probability 0."""
    candidates = torch.tensor([[0.0, 0, 0], [2, 0, 0], [0, 2, 0], [0, 0, 2]]).expand(count, -1, -1)
    return StartCells(torch.randn(count, 16), candidates, torch.tensor([0.7, 0.2, 0.1, 0]).expand(count, -1))


def test_sample_posterior_matches_probs() -> None:
    """The chain of eight steps from noise of a fixed size has a small error."""
    torch.manual_seed(0)
    head = LatentHead(HEAD)
    samples = sample_posterior(head, start_cells(400))
    num_starts, impossible = count_starts(head, start_cells(400), samples)
    assert abs(num_starts / (400 * DRAWS) - 0.3) < 0.1 and impossible < 0.01 * num_starts
    counts = torch.cdist(samples.flatten(0, 1), start_cells(1).candidates[0]).argmin(1).bincount(minlength=4)
    assert counts[3] < 0.01 * num_starts and 1.5 < counts[1] / counts[2] < 2.7


def test_count_starts_counts_impossible_samples() -> None:
    head, cells = LatentHead(HEAD), start_cells(3)
    possible, not_possible, between = (
        cells.candidates[:, 1],
        cells.candidates[:, 3],
        torch.tensor([1.5, 1.5, 0]).expand(3, -1),
    )
    samples = torch.stack([cells.candidates[:, 0] + 0.1, possible + 0.1, not_possible, between], 1)
    assert count_starts(head, cells, samples) == (9, 6)


def test_start_cells_exclude_inexact_posteriors(glyphs: GlyphLatents) -> None:
    batch = LatentBatches(glyphs, 99, held_out=True, drop=0.0).next_batch(4)
    cells = StartCells.from_batch(batch, torch.randn(*batch.candidate_probs.shape[:2], 16))
    assert len(cells.start_probs) == (batch.is_exact | batch.is_finished).sum() and (cells.start_probs == 0).any()
    assert (cells.start_probs[cells.start_probs > 0] > 1e-6).all() and cells.start_probs.max() <= 1.001
    first_cells = cells.select(torch.arange(50))
    assert sample_head(LatentHead(HEAD), first_cells).shape == (50, DRAWS, 3)
