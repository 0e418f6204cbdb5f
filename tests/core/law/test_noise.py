"""The noise tape: Gumbel, independent over every key, the same for whoever asks and whenever."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy import stats

from polydraft.core.law.noise import gumbel, row_keys, uniform
from polydraft.core.rows import Departure

from ..tables import noise


def block(seed: int = 1, segment: int = 0, positions: int = 64, vocab: int = 512) -> torch.Tensor:
    return gumbel(row_keys(torch.tensor([seed]), torch.tensor([segment])), torch.arange(positions)[None], vocab)[0]


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
    noise = gumbel(
        row_keys(torch.arange(rows), torch.zeros(rows, dtype=torch.long)), torch.zeros(rows, 1, dtype=torch.long), 5
    )
    drawn = torch.bincount((law.log() + noise[:, 0]).argmax(-1), minlength=5)
    assert stats.chisquare(drawn.numpy(), (law * rows).numpy()).pvalue > 1e-3


@settings(max_examples=40)
@given(some.lists(some.tuples(some.integers(0, 9), some.integers(1, 9)), min_size=1, max_size=40), some.data())
def test_a_window_is_the_same_however_it_is_reached(moves, data):
    """Any walk of ragged rows, with rows that leave and join, reads what a direct draw gives."""
    vocab, tape = 3, noise(3, 3, on_tape=True)
    tape.seeds = torch.tensor([5, 6, 7])
    starts = [0, 3, 11]
    for jump, width in moves:
        starts = [start + jump * (row + 1) for row, start in enumerate(starts)]
        counts = torch.tensor(starts)
        window, again = tape.window(counts, width), tape.window(counts, data.draw(some.integers(1, width + 2)))
        assert torch.equal(again[:, :width], window[:, : again.shape[1]])
        for row, start in enumerate(starts):
            t = torch.arange(start, start + width)[None]
            direct = gumbel(row_keys(tape.seeds[row : row + 1], torch.tensor([0])), t, vocab)[0]
            assert torch.equal(window[row], direct)
        if len(starts) > 1 and data.draw(some.booleans()):
            leaving = Departure.of([data.draw(some.integers(0, len(starts) - 1))], len(starts))
            tape.leave(leaving)
            starts = leaving.list_of(starts)
        elif data.draw(some.booleans()):
            late = noise(1, vocab, on_tape=True)
            late.seeds = late.seeds + 99
            tape.extend(late)
            starts = [*starts, 0]


@pytest.mark.parametrize("on_tape", [True, False])
def test_what_a_draft_draws_is_what_stands_there(on_tape):
    """And on the tape its judge, which asks for one place more, draws nothing again before the pass is over."""
    count, fresh = torch.tensor([3, 0, 8]), noise(3, 5, on_tape=on_tape)
    drawn = noise(3, 5, on_tape=on_tape)
    ahead = drawn.ahead(count, 4).gumbel()
    assert torch.equal(ahead, fresh.at(count[:, None] + torch.arange(4)).gumbel())
    judged = drawn.behind(count, 5)
    assert (judged.data_ptr() == ahead.data_ptr()) is on_tape
    drawn.turn()
    assert drawn.behind(count, 5).data_ptr() != judged.data_ptr()
    assert noise(3, 5, on_tape=on_tape, greedy=True).ahead(count, 4).gumbel() is None


def test_greedy_rows_are_quiet_and_change_nothing_for_others():
    """Alone, and beside rows that draw."""
    t = torch.arange(4).expand(2, -1)
    assert noise(2, 7, on_tape=True, greedy=True).tape(t).abs().sum() == 0
    mixed, loud = noise(2, 7, on_tape=True), noise(2, 7, on_tape=True)
    mixed.greedy, mixed.temperatures = torch.tensor([True, False]), [0.0, 1.0]
    for drawn, wanted in ((mixed.tape(t), loud.tape(t)), (mixed.gumbel(4), loud.gumbel(4))):
        assert drawn[0].abs().sum() == 0 and torch.equal(drawn[1], wanted[1]) and wanted[0].abs().sum() > 0
    assert torch.equal(mixed.uniform(3), loud.uniform(3))


def test_the_second_stream_is_fresh_for_every_pass_draw_and_place():
    """And a function of the row's own passes: rows that joined late draw what they draw alone."""
    drawn = noise(3, 5)
    seen = [drawn.gumbel(4), drawn.gumbel(4)]
    drawn.turn()
    seen += [drawn.gumbel(4), noise(3, 5, on_tape=True).tape(torch.arange(4).expand(3, -1))]
    whole = torch.cat([draws.flatten() for draws in seen])
    assert whole.unique().numel() == whole.numel()
    late = noise(1, 5)
    drawn.extend(late)
    assert torch.equal(drawn.gumbel(4)[3], noise(1, 5).gumbel(4)[0]) is False, "the draw of the pass counts too"
    drawn.turn()
    late.turn()
    assert torch.equal(drawn.gumbel(4)[3], late.gumbel(4)[0])
    assert torch.equal(drawn.uniform(2)[3], late.uniform(2)[0])


def test_further_draws_are_independent_of_each_other_and_of_the_tape():
    tape, t = noise(400, 8, on_tape=True), torch.arange(40).expand(400, -1)
    seen = [tape.spots(t, 1), tape.spots(t, 2), *tape.tape(t).double().unbind(-1)[:2]]
    assert all(spots.min() > 0 and spots.max() < 1 for spots in seen[:2])
    for one, other in itertools.combinations(seen, 2):
        assert abs(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]) < 4 / one.numel() ** 0.5
    assert torch.equal(tape.spots(t[:, 7:9], 1), seen[0][:, 7:9]), "tied to places"
    assert not noise(2, 8, greedy=True).spots(t[:2], 1).any()


def test_uniforms_stay_inside():
    draws = uniform(torch.arange(100_000))
    assert draws.min() > 0 and draws.max() < 1 and stats.kstest(draws.numpy(), "uniform").pvalue > 1e-3
