"""Moments by place: two samples of one law agree, and a law that is off in one coordinate of one place does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polydraft.apps.bench.image.moments import agreement, moments

PAIRS, PLACES, SIZE = 60, 40, 3


def latents(seed: int) -> Tensor:
    """Of several captions: every place has a mean of its caption's."""
    captions = torch.randn(PAIRS, PLACES, SIZE, generator=torch.Generator().manual_seed(99))
    return captions + 0.7 * torch.randn(PAIRS, PLACES, SIZE, generator=torch.Generator().manual_seed(seed))


def test_one_law_agrees_about_as_often_as_it_is_said_to():
    found = [agreement(moments(latents(2 * seed)) - moments(latents(2 * seed + 1))) for seed in range(20)]
    assert sum(each.agree for each in found) >= 16
    outside = sum(each.outside for each in found) / len(found)
    assert 0.03 < outside < 0.08 and found[0].cells == 2 * PLACES * SIZE


@pytest.mark.parametrize("wrong", ["a mean", "a deviation"])
def test_another_law_is_seen(wrong):
    other = latents(1)
    spot = other[:, 7, 1]
    other[:, 7, 1] = spot + 0.9 if wrong == "a mean" else spot * 2
    found = agreement(moments(other) - moments(latents(0)))
    assert not found.agree and found.largest > found.bound


def test_samples_that_are_equal_agree():
    found = agreement(moments(latents(3)) - moments(latents(3)))
    assert found.agree and found.largest == 0 and found.outside == 0
