"""Loudness as defined by the standard, and detection of planted clicks and pauses."""

from __future__ import annotations

import numpy as np
import pytest

from polydraft.apps.bench.speech.loudness import high_pass, loudness, shelf
from polydraft.apps.bench.speech.product import ReferenceSpeech, SpokenText, cells, level, pauses, row

RATE = 16_000


def tone(seconds: float, amplitude: float = 0.2, hertz: float = 400.0, rate: int = RATE) -> np.ndarray:
    return (amplitude * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def quiet(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE), np.float32)


def test_filters_are_the_standards_at_48_khz() -> None:
    """Check the filters against ITU-R BS.1770-4, tables 1 and 2."""
    assert np.allclose(shelf(48_000).b, (1.53512485958697, -2.69169618940638, 1.19839281085285), atol=1e-8)
    assert np.allclose(shelf(48_000).a, (1, -1.69065929318241, 0.73248077421585), atol=1e-8)
    assert np.allclose(high_pass(48_000).a, (1, -1.99004745483398, 0.99007225036621), atol=1e-8)


@pytest.mark.parametrize("rate", [16_000, 24_000, 48_000])
def test_full_scale_sine_measures_minus_3_lufs(rate: int) -> None:
    assert abs(loudness(tone(3, 1.0, 997, rate), rate) + 3.01) < 0.05


def test_quiet_does_not_count_and_gain_does() -> None:
    loud = tone(4)
    assert abs(loudness(np.concatenate([loud, quiet(20)]), RATE) - loudness(loud, RATE)) < 0.5
    assert abs(loudness(loud / 2, RATE) - loudness(loud, RATE) + 6.02) < 0.01
    assert loudness(quiet(1), RATE) == -np.inf and np.isfinite(loudness(loud[:800], RATE))


def test_pauses_are_found_and_ends_are_none() -> None:
    speech = np.concatenate([quiet(0.3), tone(1), quiet(0.25), tone(0.5), quiet(0.06), tone(0.5), quiet(0.4)])
    assert np.allclose(pauses(speech, RATE), [0.25], atol=0.006)
    assert pauses(quiet(2), RATE) == [] and pauses(tone(2), RATE) == []


def test_planted_click_and_bad_join_are_detected() -> None:
    speech = np.concatenate([quiet(0.2), tone(1), quiet(0.2)])
    clean = row("slt", [SpokenText(np.concatenate([speech, speech]), [len(speech)], True)], None, RATE)
    assert clean["start"] == clean["join"] == -120 and abs(clean["pauses"] - 0.4) < 0.02
    speech[100:180] = 0.01
    ticking = row(
        "slt", [SpokenText(np.concatenate([speech, speech]), [len(speech)], False)], [ReferenceSpeech(speech, 1)], RATE
    )
    assert -50 < ticking["start"] < -40 and -50 < ticking["join"] < -40 and ticking["pauses"] is None
    assert cells(ticking)[5:] == ["", "", "", ""] and len(cells(clean)) == 9


def test_pause_length_is_measured_at_renderer_pauses() -> None:
    def speech(*gaps: float) -> np.ndarray:
        return np.concatenate([tone(0.5), *(part for gap in gaps for part in (quiet(gap), tone(0.5)))])

    reference = [
        ReferenceSpeech(speech(0.09, 0.05), 1),
        ReferenceSpeech(speech(0.05), 0),
        ReferenceSpeech(speech(0.11, 0.07), 2),
    ]
    stretched = [speech(0.05, 0.12), speech(0.15), speech(0.14, 0.07)]
    found = row("slt", [SpokenText(one, [], True) for one in stretched], reference, RATE)
    assert found["reference_pause"] == pytest.approx((0.09 + 0.11 + 0.07) / 3, abs=0.006)
    assert found["pause"] == pytest.approx((0.12 + 0.14 + 0.07) / 3, abs=0.006)
    assert found["pauses"] == pytest.approx((0.12 + 0.15 + 0.14) / 3, abs=0.006), "a stop that lasts too long is one"
    none = row("slt", [SpokenText(speech(0.05), [], True)], [ReferenceSpeech(speech(0.05), 0)], RATE)
    assert none["pause"] is None and none["reference_pause"] is None and none["pauses"] == 0


def test_levels() -> None:
    assert abs(level(tone(1, 1.0)) + 3.01) < 0.01 and level(quiet(0)) == -120
