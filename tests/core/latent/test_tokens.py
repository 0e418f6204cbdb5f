"""The few things the loop does with tokens, for ids and for latents: against plain Python, and side by side."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.tokens import either, put, same, take
from polydraft.core.verdict import GOES_ON, LENGTH, cut_at_end, follow

ROWS, LENGTH_OF_ROWS, WIDTH = 4, 9, 5
KINDS = {"ids": (), "latents": (3,), "latents of one": (1,)}


def tokens(length: int, kind: str, seed: int = 0) -> Tensor:
    """Few values, so that some tokens are equal and some latents are equal in part."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 3, (ROWS, length, *KINDS[kind]), generator=generator)
    return drawn.float() / 3 if KINDS[kind] else drawn


def places(seed: int = 1) -> Tensor:
    choice = random.Random(seed)
    return torch.tensor([choice.sample(range(LENGTH_OF_ROWS), WIDTH) for _ in range(ROWS)])


@pytest.mark.parametrize("kind", KINDS)
def test_take_and_put(kind):
    whole, at = tokens(LENGTH_OF_ROWS, kind), places()
    taken = take(whole, at)
    assert taken.shape == (ROWS, WIDTH, *KINDS[kind])
    for row in range(ROWS):
        for column in range(WIDTH):
            assert torch.equal(taken[row, column], whole[row, at[row, column]])
    new, written = tokens(WIDTH, kind, 2), whole.clone()
    put(written, at, new)
    assert torch.equal(take(written, at), new)
    elsewhere = torch.ones(ROWS, LENGTH_OF_ROWS, dtype=torch.bool).scatter(1, at, False)
    assert torch.equal(written[elsewhere], whole[elsewhere])
    assert take(whole, at[:, :0]).shape == (ROWS, 0, *KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_same_and_either(kind):
    these, those = tokens(40, kind, 3), tokens(40, kind, 4)
    equal = same(these, those)
    wanted = [[torch.equal(a, b) for a, b in zip(*pair, strict=True)] for pair in zip(these, those, strict=True)]
    assert equal.tolist() == wanted and equal.any() and not equal.all()
    chosen = either(equal, these, those + 10)
    assert same(chosen, these).equal(equal) and same(chosen, those + 10).equal(~equal)
    assert same(these[:, :0], those[:, :0]).shape == (ROWS, 0)


def test_what_is_no_latent_is_like_nothing():
    """Not even like itself: a root or a place nobody guessed is never a hit."""
    none = torch.full((1, 2, 3), torch.nan)
    assert not same(none, none).any()
    half = torch.tensor([[[0.5, torch.nan, 1.0]]])
    assert not same(half, half).any()


def test_drafts_and_verdicts_of_latents_are_those_of_ids():
    """Latents that stand for ids go through trees, stems, paths and ends as the ids do."""
    table = torch.randn(11, 3, generator=torch.Generator().manual_seed(6))
    choice = random.Random(7)
    for _ in range(30):
        nodes = choice.randrange(1, 7)
        parents = torch.tensor([[choice.randrange(-1, node) for node in range(nodes)] for _ in range(ROWS)])
        ids = torch.tensor([[choice.randrange(11) for _ in range(nodes)] for _ in range(ROWS)])
        valid = torch.ones_like(ids, dtype=torch.bool)
        draft = Draft(ids, parents, valid, nodes)
        twin = Draft(table[ids], parents, valid, nodes)
        leaf = torch.tensor([choice.randrange(nodes) for _ in range(ROWS)])
        stem = torch.tensor([[choice.randrange(11) for _ in range(2)] for _ in range(ROWS)])
        counts = torch.tensor([choice.randrange(3) for _ in range(ROWS)])
        one, other = draft.under(stem, counts, nodes + 1), twin.under(table[stem], counts, nodes + 1)
        assert torch.equal(table[one.tokens], other.tokens) and torch.equal(one.parents, other.parents)
        choices = torch.tensor([[choice.randrange(11) for _ in range(nodes + 1)] for _ in range(ROWS)])
        left = torch.tensor([choice.randrange(1, nodes + 2) for _ in range(ROWS)])
        verdicts = []
        for one, chosen in ((draft, choices), (twin, table[choices])):
            verdict = follow(leaf + 1, one, chosen)
            verdicts.append(cut_at_end(verdict, left, None, torch.ones_like(verdict.columns, dtype=torch.bool)))
        for row in range(ROWS):
            count = int(verdicts[0].counts[row])
            assert torch.equal(table[verdicts[0].tokens[row, :count]], verdicts[1].tokens[row, :count])
        for name in ("path", "accepted", "counts", "end", "finish"):
            assert torch.equal(getattr(verdicts[0], name), getattr(verdicts[1], name))
        assert set(verdicts[0].finish.tolist()) <= {GOES_ON, LENGTH}
