"""Shared noise: Gumbel distributed, independent over keys, and the same for every caller."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy import stats

from polydraft.core.batched_state import RowRemoval
from polydraft.core.sampling.noise import gumbel_from_keys, row_keys, uniform_from_keys

from ..tables import noise


def block(seed: int = 1, segment: int = 0, positions: int = 64, vocab: int = 512) -> torch.Tensor:
    return gumbel_from_keys(
        row_keys(torch.tensor([seed]), torch.tensor([segment])), torch.arange(positions)[None], vocab
    )[0]


def test_gumbel_noise_has_gumbel_distribution():
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
def test_gumbel_noise_of_neighbouring_keys_is_independent(first, second):
    assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 4 / first.numel() ** 0.5


def test_gumbel_noise_has_no_duplicates():
    whole = torch.cat([block(seed=seed, segment=segment) for seed in (0, 1) for segment in (0, 1)]).double()
    assert torch.isfinite(whole).all() and whole.unique().numel() > 0.98 * whole.numel()  # fp32 has ties, keys none


def test_gumbel_argmax_follows_token_probabilities():
    """Gumbel-max: argmax(log p + g) is a draw from p."""
    probs = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625])
    rows = 20_000
    noise = gumbel_from_keys(
        row_keys(torch.arange(rows), torch.zeros(rows, dtype=torch.long)), torch.zeros(rows, 1, dtype=torch.long), 5
    )
    drawn = torch.bincount((probs.log() + noise[:, 0]).argmax(-1), minlength=5)
    assert stats.chisquare(drawn.numpy(), (probs * rows).numpy()).pvalue > 1e-3


@settings(max_examples=40)
@given(some.lists(some.tuples(some.integers(0, 9), some.integers(1, 9)), min_size=1, max_size=40), some.data())
def test_candidate_gumbel_depends_on_position_only(moves, data):
    """Check that ragged rows, with rows added and removed, get the same noise as a direct call."""
    vocab, shared = 3, noise(3, 3, uses_shared_noise=True)
    shared.seeds = torch.tensor([5, 6, 7])
    starts = [0, 3, 11]
    for jump, width in moves:
        starts = [start + jump * (row + 1) for row, start in enumerate(starts)]
        counts = torch.tensor(starts)
        window, second = (
            shared.candidate_gumbel(counts, width),
            shared.candidate_gumbel(counts, data.draw(some.integers(1, width + 2))),
        )
        assert torch.equal(second[:, :width], window[:, : second.shape[1]])
        for row, start in enumerate(starts):
            t = torch.arange(start, start + width)[None]
            direct = gumbel_from_keys(row_keys(shared.seeds[row : row + 1], torch.tensor([0])), t, vocab)[0]
            assert torch.equal(window[row], direct)
        if len(starts) > 1 and data.draw(some.booleans()):
            removal = RowRemoval.from_rows([data.draw(some.integers(0, len(starts) - 1))], len(starts))
            shared.remove_rows(removal)
            starts = removal.apply_to_list(starts)
        elif data.draw(some.booleans()):
            late = noise(1, vocab, uses_shared_noise=True)
            late.seeds = late.seeds + 99
            shared.append_rows(late)
            starts = [*starts, 0]


@pytest.mark.parametrize("uses_shared_noise", [True, False])
def test_draft_positions_share_noise_with_verifier(uses_shared_noise):
    """Check also that with shared noise the verifier, which needs one more position, reuses the drafter's draw."""
    count, fresh = torch.tensor([3, 0, 8]), noise(3, 5, uses_shared_noise=uses_shared_noise)
    drawn = noise(3, 5, uses_shared_noise=uses_shared_noise)
    drafter_noise = drawn.draft_positions(count, 4).gumbel()
    assert torch.equal(drafter_noise, fresh.at_positions(count[:, None] + torch.arange(4)).gumbel())
    verifier_noise = drawn.gumbel_after(count, 5)
    assert (verifier_noise.data_ptr() == drafter_noise.data_ptr()) is uses_shared_noise
    drawn.next_pass()
    assert drawn.gumbel_after(count, 5).data_ptr() != verifier_noise.data_ptr()
    assert noise(3, 5, uses_shared_noise=uses_shared_noise, greedy=True).draft_positions(count, 4).gumbel() is None


def test_greedy_rows_get_zero_gumbel_noise():
    """Check batches of greedy rows, and greedy rows next to sampled ones."""
    t = torch.arange(4).expand(2, -1)
    assert noise(2, 7, uses_shared_noise=True, greedy=True).gumbel_at(t).abs().sum() == 0
    mixed, all_sampled = noise(2, 7, uses_shared_noise=True), noise(2, 7, uses_shared_noise=True)
    mixed.greedy, mixed.temperatures = torch.tensor([True, False]), [0.0, 1.0]
    for drawn, wanted in (
        (mixed.gumbel_at(t), all_sampled.gumbel_at(t)),
        (mixed.fresh_gumbel(4), all_sampled.fresh_gumbel(4)),
    ):
        assert drawn[0].abs().sum() == 0 and torch.equal(drawn[1], wanted[1]) and wanted[0].abs().sum() > 0
    assert torch.equal(mixed.fresh_uniforms(3), all_sampled.fresh_uniforms(3))


def test_fresh_noise_differs_by_pass_draw_and_index():
    """Check also that it depends on the row's own passes: rows added late get the noise that they get alone."""
    drawn = noise(3, 5)
    seen = [drawn.fresh_gumbel(4), drawn.fresh_gumbel(4)]
    drawn.next_pass()
    seen += [drawn.fresh_gumbel(4), noise(3, 5, uses_shared_noise=True).gumbel_at(torch.arange(4).expand(3, -1))]
    whole = torch.cat([draws.flatten() for draws in seen])
    assert whole.unique().numel() == whole.numel()
    late = noise(1, 5)
    drawn.append_rows(late)
    assert torch.equal(drawn.fresh_gumbel(4)[3], noise(1, 5).fresh_gumbel(4)[0]) is False, (
        "the draw of the pass counts too"
    )
    drawn.next_pass()
    late.next_pass()
    assert torch.equal(drawn.fresh_gumbel(4)[3], late.fresh_gumbel(4)[0])
    assert torch.equal(drawn.fresh_uniforms(2)[3], late.fresh_uniforms(2)[0])


def test_uniforms_at_are_independent_of_gumbel_noise():
    shared, t = noise(400, 8, uses_shared_noise=True), torch.arange(40).expand(400, -1)
    seen = [shared.uniforms_at(t, 1), shared.uniforms_at(t, 2), *shared.gumbel_at(t).double().unbind(-1)[:2]]
    assert all(uniforms.min() > 0 and uniforms.max() < 1 for uniforms in seen[:2])
    for one, other in itertools.combinations(seen, 2):
        assert abs(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]) < 4 / one.numel() ** 0.5
    assert torch.equal(shared.uniforms_at(t[:, 7:9], 1), seen[0][:, 7:9]), "a function of the position"
    assert not noise(2, 8, greedy=True).uniforms_at(t[:2], 1).any()


def test_uniforms_are_strictly_inside_unit_interval():
    draws = uniform_from_keys(torch.arange(100_000))
    assert draws.min() > 0 and draws.max() < 1 and stats.kstest(draws.numpy(), "uniform").pvalue > 1e-3
