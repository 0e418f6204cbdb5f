"""Resampling: pieces of any size equal the whole, and audio at the target rate is unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from polydraft.modalities.speech.resampling import Resampler, resample

AUDIO = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000).astype(np.float32)


@pytest.mark.parametrize("sizes", [[16_000], [1920, 0, 8000, 6080], [100] * 160])
def test_resampler_of_pieces_equals_whole(sizes: list[int]) -> None:
    resampler, ends = Resampler(16_000, 24_000), np.cumsum(sizes)[:-1]
    pieces = [resampler.push(piece) for piece in np.split(AUDIO, ends)]
    assert np.array_equal(np.concatenate([*pieces, resampler.finish()]), resample(AUDIO, 16_000, 24_000))


def test_resample_tone_keeps_pitch_and_length() -> None:
    resampled = resample(AUDIO, 16_000, 24_000)
    expected = np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000)
    assert resampled.dtype == np.float32 and len(resampled) == 24_000
    assert np.abs(resampled - expected)[1000:-1000].max() < 1e-3


def test_resample_at_same_rate_is_identity() -> None:
    assert np.array_equal(resample(AUDIO, 24_000, 24_000), AUDIO)
