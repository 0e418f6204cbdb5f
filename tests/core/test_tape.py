"""The noise tape: Gumbel, independent over every key, the same for whoever asks and whenever."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy import stats

from polydraft.core.tape import NoiseTape, gumbel, uniform


def block(seed: int = 1, segment: int = 0, positions: int = 64, vocab: int = 512) -> torch.Tensor:
    return gumbel(torch.tensor([seed]), torch.tensor([segment]), torch.arange(positions)[None], vocab)[0]


def test_it_is_gumbel():
    assert stats.kstest(block(positions=40).flatten().double().numpy(), "gumbel_r").pvalue > 1e-3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (block(seed=1), block(seed=2)),
        (block(segment=0), block(segment=1)),
        (block()[:-1], block()[1:]),
        (block()[:, :-1], block()[:, 1:]),
    ],
    ids=["seeds", "segments", "positions", "tokens"],
)
def test_neighbouring_keys_are_independent(first, second):
    assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 4 / first.numel() ** 0.5


def test_no_two_entries_coincide():
    whole = torch.cat([block(seed=seed, segment=segment) for seed in (0, 1) for segment in (0, 1)]).double()
    assert torch.isfinite(whole).all() and whole.unique().numel() > 0.98 * whole.numel()  # fp32 has ties, keys none


def test_the_winner_follows_the_law():
    """Gumbel-max: argmax(log p + g) is a draw from p."""
    law = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625])
    rows = 20_000
    noise = gumbel(torch.arange(rows), torch.zeros(rows, dtype=torch.long), torch.zeros(rows, 1, dtype=torch.long), 5)
    drawn = torch.bincount((law.log() + noise[:, 0]).argmax(-1), minlength=5)
    assert stats.chisquare(drawn.numpy(), (law * rows).numpy()).pvalue > 1e-3


@settings(max_examples=40, deadline=None)
@given(some.lists(some.tuples(some.integers(0, 9), some.integers(1, 9)), min_size=1, max_size=40), some.data())
def test_a_window_is_the_same_however_it_is_reached(moves, data):
    """Any forward walk of ragged rows, with rows dropped and joined, reads what a direct draw gives."""
    seeds, vocab = [5, 6, 7], 3
    tape = NoiseTape(seeds, vocab, reach=9)
    starts = [0, 3, 11]
    for jump, width in moves:
        starts = [start + jump * (row + 1) for row, start in enumerate(starts)]
        window = tape.window(starts, width)
        for row, start in enumerate(starts):
            t = torch.arange(start, start + width)[None]
            direct = gumbel(torch.tensor([tape.seeds[row]]), torch.tensor([0]), t, vocab)[0]
            assert torch.equal(window[row], direct)
        if len(starts) > 1 and data.draw(some.booleans()):
            rows = data.draw(some.permutations(range(len(starts))))[: len(starts) - 1]
            tape, starts = tape.select(rows), [starts[row] for row in rows]
        elif data.draw(some.booleans()):
            late = NoiseTape([99], vocab, reach=9)
            tape, starts = NoiseTape.concat([tape, late]), [*starts, 0]


def test_greedy_is_a_tape_of_zeros():
    assert NoiseTape([1], 7, 4, greedy=True).window([3], 4).abs().sum() == 0


def test_uniforms_stay_inside():
    draws = uniform(torch.arange(100_000))
    assert draws.min() > 0 and draws.max() < 1 and stats.kstest(draws.numpy(), "uniform").pvalue > 1e-3
