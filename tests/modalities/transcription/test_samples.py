"""Buffers of samples: windows are the sound that was pushed, and cuts are where it is quiet."""

from __future__ import annotations

import numpy as np
import pytest

from polydraft.core.errors import InvalidArgument
from polydraft.modalities.transcription import samples as samples_module
from polydraft.modalities.transcription.samples import PAUSE_FRAMES, SampleBuffer, quiet_cut

RATE = 16_000
HOP = 160


def noise(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.3, length).astype(np.float32)


@pytest.mark.parametrize("spooled", [1 << 26, 1000])
def test_windows_equal_pushed_sound(spooled, monkeypatch):
    """They are the same in memory and on disk, whatever the sizes of the blocks."""
    monkeypatch.setattr(samples_module, "SPOOLED_BYTES", spooled)
    sound, rng = noise(10_007), np.random.default_rng(1)
    with SampleBuffer(RATE) as buffer:
        for block in np.split(sound, np.sort(rng.integers(0, len(sound), 9))):
            buffer.push(block)
            assert (buffer.window(0, 1)[: len(block)] == sound[: min(HOP, len(block))][: len(block)]).all()
        assert buffer.num_samples == len(sound) and buffer.num_frames == -(-len(sound) // HOP)
        assert buffer.duration == pytest.approx(len(sound) / RATE)
        for first, count in ((0, 3), (17, 20), (60, 1000)):
            np.testing.assert_array_equal(buffer.window(first, count), sound[first * HOP : (first + count) * HOP])
        wanted = [np.square(part).mean() for part in np.split(sound, range(HOP, len(sound), HOP))]
        np.testing.assert_allclose(buffer.power, wanted, rtol=1e-5)


@pytest.mark.parametrize("wrong", [np.zeros((2, 2), np.float32), np.array([np.nan], np.float32)])
def test_sound_of_wrong_form_is_refused(wrong):
    with SampleBuffer(RATE) as buffer, pytest.raises(InvalidArgument, match="push finite mono samples"):
        buffer.push(wrong)


def test_short_sound_is_not_cut():
    for length in (0, 1, 300):
        assert quiet_cut(np.ones(length, np.float32), 300) == length


@pytest.mark.parametrize("start", [150, 200, 260])
def test_cut_is_amid_the_pause(start):
    power = np.ones(1000, np.float32)
    power[start : start + PAUSE_FRAMES] = 0.001
    assert start < quiet_cut(power, 300) < start + PAUSE_FRAMES


def test_cut_is_late_where_all_is_as_quiet():
    assert 300 - PAUSE_FRAMES <= quiet_cut(np.zeros(1000, np.float32), 300) <= 300
    assert quiet_cut(np.ones(5, np.float32), 2) in (1, 2)


def test_early_pause_is_no_cut():
    power = np.ones(1000, np.float32)
    power[:100] = 0
    assert quiet_cut(power, 300) >= 150


@pytest.mark.parametrize("seed", range(5))
def test_pieces_leave_nothing_out(seed):
    power, pieces, longest = np.abs(noise(5_000, seed)), [], 37 + 60 * seed
    while sum(pieces) < len(power):
        pieces.append(quiet_cut(power[sum(pieces) :], longest))
        assert 0 < pieces[-1] <= longest
    assert sum(pieces) == len(power)
