"""What tells that a thing begins, and the divergence that is taught of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from polydraft.apps.train.image.beginnings import first_codes
from polydraft.apps.train.image.data import Batches, encoded, open_tokenizer
from polydraft.apps.train.image.target import divergence_among, divergence_of
from polydraft.modalities.loading import card
from polydraft.modalities.world.worlds import FLAT


@pytest.fixture(scope="module")
def tokenizer() -> Path:
    return Path(card("tiny-image").path) / "tokenizer"


def test_first_codes_are_where_scenes_begin_things_and_not_on_their_grounds(tokenizer: Path) -> None:
    firsts = set(first_codes(partial(encoded, open_tokenizer(tokenizer)), FLAT, np.random.default_rng(0)).tolist())
    batch = (data := Batches(tokenizer, seed=4)).next(32)
    assert not firsts & set(data.codes.empty.values())
    rows, slots = torch.arange(32)[:, None], batch.begins >= 0
    at = (batch.cells == 0).int().argmax(1)[:, None] + batch.begins.clamp(min=0)
    began = (batch.ids[rows, at] - data.offset)[slots]
    assert np.mean([code in firsts for code in began.tolist()]) > 0.95


def test_told_of_a_part_is_what_laws_of_two_ids_would_pay() -> None:
    """Of ids 0 to 5 those below 2 are meant: the divergence is that between the laws of being among them."""
    torch.manual_seed(0)
    logits, some = torch.randn(50, 6), torch.tensor([0, 1])
    chances = torch.rand(50, 4)
    chances[:25, 1:] = 0
    chances /= chances.sum(1, keepdim=True)
    choices = torch.stack([torch.randperm(6)[:4] for _ in range(50)])
    law = torch.zeros(50, 6).scatter_(1, choices, chances)
    p = logits.softmax(-1)
    two, wanted = (torch.stack([x[:, :2].sum(1), x[:, 2:].sum(1)], 1) for x in (p, law))
    right = (torch.special.xlogy(wanted, wanted) - wanted * two.log()).sum(1)
    torch.testing.assert_close(divergence_among(logits, chances, choices, some), right, rtol=1e-4, atol=1e-5)


def test_it_is_at_its_best_where_the_whole_law_is(tokenizer: Path) -> None:
    """The law of every cell of flat scenes, said exactly, pays nothing in whole or in part; one thing too many does."""
    batch = (data := Batches(tokenizer, seed=6, drop=0.0)).next(4)
    firsts = data.offset + first_codes(partial(encoded, open_tokenizer(tokenizer)), FLAT, np.random.default_rng(0))
    wanted = batch.chances.any(-1)
    chances, choices = batch.chances[wanted], batch.choices[wanted]
    exact = torch.zeros(len(chances), data.vocab_size).scatter_add_(1, choices, chances)
    assert divergence_of(exact.clamp(min=1e-12).log(), chances, choices).abs().max() < 1e-3
    assert divergence_among(exact.clamp(min=1e-12).log(), chances, choices, firsts).abs().max() < 1e-3
    spurious = 0.99 * exact
    spurious[:, firsts[0]] += 0.01
    assert divergence_among(spurious.clamp(min=1e-12).log(), chances, choices, firsts).mean() > 5e-3
