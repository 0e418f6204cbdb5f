"""What is told of begun things: the law's own draws are what it says, and what cannot be is counted."""

from __future__ import annotations

import torch

from polydraft.apps.train.latent.data import GlyphLatents, LatentBatches
from polydraft.apps.train.latent.examine import DRAWS, Places, by_head, by_law, judged
from polydraft.modalities.image.latent.head import HeadConfig, LatentHead

HEAD = HeadConfig(size=3, hidden=16, width=16, blocks=1, embedding=8, time=8)


def here(count: int) -> Places:
    """Places where one of two things begins, three times in ten; what stands last in `could` never does."""
    could = torch.tensor([[0.0, 0, 0], [2, 0, 0], [0, 2, 0], [0, 0, 2]]).expand(count, -1, -1)
    return Places(torch.randn(count, 16), could, torch.tensor([0.7, 0.2, 0.1, 0]).expand(count, -1))


def test_the_law_draws_what_it_says() -> None:
    """But for what eight steps from noise of a fixed size are off."""
    torch.manual_seed(0)
    head = LatentHead(HEAD)
    drawn = by_law(head, here(400))
    begun, impossible = judged(head, here(400), drawn)
    assert abs(begun / (400 * DRAWS) - 0.3) < 0.1 and impossible < 0.01 * begun
    counts = torch.cdist(drawn.flatten(0, 1), here(1).could[0]).argmin(1).bincount(minlength=4)
    assert counts[3] < 0.01 * begun and 1.5 < counts[1] / counts[2] < 2.7


def test_draws_of_what_cannot_begin_are_counted() -> None:
    head, there = LatentHead(HEAD), here(3)
    possible, not_possible, between = there.could[:, 1], there.could[:, 3], torch.tensor([1.5, 1.5, 0]).expand(3, -1)
    drawn = torch.stack([there.could[:, 0] + 0.1, possible + 0.1, not_possible, between], 1)
    assert judged(head, there, drawn) == (9, 6)


def test_a_head_draws_at_places_whose_law_is_whole(glyphs: GlyphLatents) -> None:
    batch = LatentBatches(glyphs, 99, held_out=True, drop=0.0).next(4)
    there = Places.of(batch, torch.randn(*batch.chances.shape[:2], 16))
    assert len(there.begins) == (batch.whole | batch.over).sum() and (there.begins == 0).any()
    assert (there.begins[there.begins > 0] > 1e-6).all() and there.begins.max() <= 1.001
    some = there.some(torch.arange(50))
    assert by_head(LatentHead(HEAD), some).shape == (50, DRAWS, 3)
