"""Acceptance at one node: closed forms and enumeration, and the table of random laws."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from polydraft.apps.bench.acceptance import likeliest, recursive, shared


def laws(count: int, vocab: int, apart: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random log p, and log q so far from it."""
    torch.manual_seed(seed)
    scores = torch.randn(count, vocab)
    return scores.log_softmax(-1), (scores + apart * torch.randn(count, vocab)).log_softmax(-1)


def variation(p: Tensor, q: Tensor) -> float:
    return float((p.exp() - q.exp()).abs().sum(-1).mean() / 2)


def test_equal_laws_are_accepted_at_once_by_what_draws_and_not_by_what_ranks_alone():
    p, _ = laws(200, 12, 0)
    assert shared(p, p, (1,)) == [1.0]
    assert recursive(p, p, (1,))[0] == pytest.approx(1, abs=1e-5)
    assert likeliest(p, p, (1, 12)) == pytest.approx([float(p.exp().amax(-1).mean()), 1], abs=1e-5)


def test_one_candidate_keeps_to_its_bounds():
    p, q = laws(4000, 9, 0.8)
    distance = (p.exp() - q.exp()).abs().sum(-1) / 2
    assert recursive(p, q, (1,))[0] == pytest.approx(float((1 - distance).mean()), abs=0.02)  # the best coupling
    assert shared(p, q, (1,))[0] > float(((1 - distance) / (1 + distance)).mean()) - 0.02


def test_recursive_rejection_is_what_enumeration_says():
    p, q = (law[:1].double() for law in laws(1, 4, 1.0, seed=3))
    chance = 0.0
    for first, second in itertools.permutations(range(4), 2):
        order = q[0, first].exp() * q[0, second].exp() / (1 - q[0, first].exp())
        left, law, none = p[0].exp(), q[0].exp(), 1.0
        for child in (first, second):
            none = none * (1 - min(1.0, float(left[child] / law[child])))
            left = (left - law).clamp(min=0)
            left, law = left / left.sum(), law.clone()
            law[child] = 0
            law = law / law.sum()
        chance += float(order) * (1 - none)
    assert recursive(p.expand(20000, -1), q.expand(20000, -1), (2,))[0] == pytest.approx(chance, abs=0.01)


def test_the_order_of_random_laws():
    """From four candidates on trees ranked with the shared noise are best, and the likeliest ids always worst."""
    p, q = laws(1500, 200, 0.55)
    assert 0.15 < variation(p, q) < 0.3
    together, drawn, ranked = shared(p, q), recursive(p, q), likeliest(p, q)
    assert all(a < b for a, b in itertools.pairwise(together))
    assert together[0] < drawn[0] and together[2] > drawn[2] and together[3] > drawn[3]
    assert all(low < high for low, high in zip(ranked, together, strict=True))


def test_a_seeds_noise_that_is_not_shared_is_caught():
    """Noise of another seed for the candidates loses what sharing gains."""
    p, q = laws(1500, 50, 0.5)
    moved = torch.roll(p, 1, 0)  # of other places
    assert shared(p, q, (1,))[0] > shared(moved, q, (1,))[0] + 0.2
