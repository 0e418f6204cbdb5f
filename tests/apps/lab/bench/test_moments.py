"""Moments by position: two samples of one distribution agree, and a deviation in one coordinate is detected."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polydraft.apps.lab.bench.moments import compare_pairs, first_two_moments

PAIRS, PLACES, SIZE = 60, 40, 3


def latents(seed: int) -> Tensor:
    """Sample latents of several captions; every position has a mean per caption."""
    captions = torch.randn(PAIRS, PLACES, SIZE, generator=torch.Generator().manual_seed(99))
    return captions + 0.7 * torch.randn(PAIRS, PLACES, SIZE, generator=torch.Generator().manual_seed(seed))


def test_compare_pairs_same_distribution_agrees_at_nominal_rate():
    found = [
        compare_pairs(first_two_moments(latents(2 * seed)) - first_two_moments(latents(2 * seed + 1)))
        for seed in range(20)
    ]
    assert sum(each.agree for each in found) >= 16
    outside = sum(each.outside for each in found) / len(found)
    assert 0.03 < outside < 0.08 and found[0].cells == 2 * PLACES * SIZE


@pytest.mark.parametrize("wrong", ["a mean", "a deviation"])
def test_compare_pairs_detects_other_distribution(wrong):
    other = latents(1)
    spot = other[:, 7, 1]
    other[:, 7, 1] = spot + 0.9 if wrong == "a mean" else spot * 2
    found = compare_pairs(first_two_moments(other) - first_two_moments(latents(0)))
    assert not found.agree and found.largest > found.bound


def test_compare_pairs_equal_samples_agree():
    found = compare_pairs(first_two_moments(latents(3)) - first_two_moments(latents(3)))
    assert found.agree and found.largest == 0 and found.outside == 0
