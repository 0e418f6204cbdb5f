"""Acceptance at one node: closed forms and enumeration, and the ranking order on random distributions."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from polydraft.apps.bench.acceptance import likeliest, recursive, shared


def random_log_probs(count: int, vocab: int, apart: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return random log p, and log q perturbed by `apart`."""
    torch.manual_seed(seed)
    scores = torch.randn(count, vocab)
    return scores.log_softmax(-1), (scores + apart * torch.randn(count, vocab)).log_softmax(-1)


def variation(p: Tensor, q: Tensor) -> float:
    return float((p.exp() - q.exp()).abs().sum(-1).mean() / 2)


def test_equal_distributions_are_accepted_unless_ranked_without_sampling():
    p, _ = random_log_probs(200, 12, 0)
    assert shared(p, p, (1,)) == [1.0]
    assert recursive(p, p, (1,))[0] == pytest.approx(1, abs=1e-5)
    assert likeliest(p, p, (1, 12)) == pytest.approx([float(p.exp().amax(-1).mean()), 1], abs=1e-5)


def test_one_candidate_keeps_to_its_bounds():
    p, q = random_log_probs(4000, 9, 0.8)
    distance = (p.exp() - q.exp()).abs().sum(-1) / 2
    assert recursive(p, q, (1,))[0] == pytest.approx(float((1 - distance).mean()), abs=0.02)  # The maximal coupling.
    assert shared(p, q, (1,))[0] > float(((1 - distance) / (1 + distance)).mean()) - 0.02


def test_recursive_rejection_matches_enumeration():
    p, q = (log_probs[:1].double() for log_probs in random_log_probs(1, 4, 1.0, seed=3))
    expected = 0.0
    for first, second in itertools.permutations(range(4), 2):
        order = q[0, first].exp() * q[0, second].exp() / (1 - q[0, first].exp())
        left, draft_probs, none = p[0].exp(), q[0].exp(), 1.0
        for child in (first, second):
            none = none * (1 - min(1.0, float(left[child] / draft_probs[child])))
            left = (left - draft_probs).clamp(min=0)
            left, draft_probs = left / left.sum(), draft_probs.clone()
            draft_probs[child] = 0
            draft_probs = draft_probs / draft_probs.sum()
        expected += float(order) * (1 - none)
    assert recursive(p.expand(20000, -1), q.expand(20000, -1), (2,))[0] == pytest.approx(expected, abs=0.01)


def test_rankings_of_random_distributions_are_ordered():
    """Check that with four or more candidates ranking by shared noise is best and by probability always worst."""
    p, q = random_log_probs(1500, 200, 0.55)
    assert 0.15 < variation(p, q) < 0.3
    together, drawn, ranked = shared(p, q), recursive(p, q), likeliest(p, q)
    assert all(a < b for a, b in itertools.pairwise(together))
    assert together[0] < drawn[0] and together[2] > drawn[2] and together[3] > drawn[3]
    assert all(low < high for low, high in zip(ranked, together, strict=True))


def test_unshared_noise_lowers_acceptance():
    """Check that candidates ranked with noise of another seed lose the gain of sharing."""
    p, q = random_log_probs(1500, 50, 0.5)
    moved = torch.roll(p, 1, 0)  # Noise of other positions.
    assert shared(p, q, (1,))[0] > shared(moved, q, (1,))[0] + 0.2
