"""The few things the loop does with tokens, for ids and for latents: against plain Python, and side by side."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.tokens import batch_gather, batch_scatter_, batch_where, tokens_equal
from polydraft.core.verification import LENGTH, RUNNING, accept_to_node, truncate_at_stop

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
def test_batch_gather_and_scatter(kind):
    whole, at = tokens(LENGTH_OF_ROWS, kind), places()
    taken = batch_gather(whole, at)
    assert taken.shape == (ROWS, WIDTH, *KINDS[kind])
    for row in range(ROWS):
        for column in range(WIDTH):
            assert torch.equal(taken[row, column], whole[row, at[row, column]])
    new, written = tokens(WIDTH, kind, 2), whole.clone()
    batch_scatter_(written, at, new)
    assert torch.equal(batch_gather(written, at), new)
    elsewhere = torch.ones(ROWS, LENGTH_OF_ROWS, dtype=torch.bool).scatter(1, at, False)
    assert torch.equal(written[elsewhere], whole[elsewhere])
    assert batch_gather(whole, at[:, :0]).shape == (ROWS, 0, *KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_equal_and_batch_where(kind):
    these, those = tokens(40, kind, 3), tokens(40, kind, 4)
    equal = tokens_equal(these, those)
    wanted = [[torch.equal(a, b) for a, b in zip(*pair, strict=True)] for pair in zip(these, those, strict=True)]
    assert equal.tolist() == wanted and equal.any() and not equal.all()
    chosen = batch_where(equal, these, those + 10)
    assert tokens_equal(chosen, these).equal(equal) and tokens_equal(chosen, those + 10).equal(~equal)
    assert tokens_equal(these[:, :0], those[:, :0]).shape == (ROWS, 0)


def test_nan_latents_equal_nothing():
    """Not even themselves: a root or an unguessed position is never a match."""
    none = torch.full((1, 2, 3), torch.nan)
    assert not tokens_equal(none, none).any()
    half = torch.tensor([[[0.5, torch.nan, 1.0]]])
    assert not tokens_equal(half, half).any()


def test_drafts_of_latents_behave_like_ids():
    """Latents that stand for ids pass through trees, stems, paths and stops as the ids do."""
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
        one, other = draft.prepend_chain(stem, counts, nodes + 1), twin.prepend_chain(table[stem], counts, nodes + 1)
        assert torch.equal(table[one.tokens], other.tokens) and torch.equal(one.parents, other.parents)
        choices = torch.tensor([[choice.randrange(11) for _ in range(nodes + 1)] for _ in range(ROWS)])
        left = torch.tensor([choice.randrange(1, nodes + 2) for _ in range(ROWS)])
        results = []
        for one, chosen in ((draft, choices), (twin, table[choices])):
            result = accept_to_node(leaf + 1, one, chosen)
            results.append(
                truncate_at_stop(result, left, None, torch.ones_like(result.token_indices, dtype=torch.bool))
            )
        for row in range(ROWS):
            count = int(results[0].num_committed[row])
            assert torch.equal(table[results[0].tokens[row, :count]], results[1].tokens[row, :count])
        for name in ("path", "num_accepted", "num_committed", "last_accepted_index", "finish_reason"):
            assert torch.equal(getattr(results[0], name), getattr(results[1], name))
        assert set(results[0].finish_reason.tolist()) <= {RUNNING, LENGTH}
