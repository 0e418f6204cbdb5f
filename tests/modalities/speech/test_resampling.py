"""Sound at another rate: pieces of any size are the whole, and what has the rate already passes unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from polydraft.modalities.speech.resampling import Resampler, resample

SOUND = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000).astype(np.float32)


@pytest.mark.parametrize("sizes", [[16_000], [1920, 0, 8000, 6080], [100] * 160])
def test_resampler_of_pieces_equals_the_whole(sizes: list[int]) -> None:
    resampler, ends = Resampler(16_000, 24_000), np.cumsum(sizes)[:-1]
    pieces = [resampler.push(piece) for piece in np.split(SOUND, ends)]
    assert np.array_equal(np.concatenate([*pieces, resampler.finish()]), resample(SOUND, 16_000, 24_000))


def test_resampled_tone_keeps_its_pitch_and_length() -> None:
    found = resample(SOUND, 16_000, 24_000)
    wanted = np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000)
    assert found.dtype == np.float32 and len(found) == 24_000
    assert np.abs(found - wanted)[1000:-1000].max() < 1e-3


def test_resampled_at_the_same_rate_is_untouched() -> None:
    assert np.array_equal(resample(SOUND, 24_000, 24_000), SOUND)
