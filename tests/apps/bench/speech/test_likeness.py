"""Likeness of audio: invariant to tempo, sensitive to content, and different between voices."""

from __future__ import annotations

import numpy as np
import pytest

from polydraft.apps.bench.speech.likeness import VoiceSpectra, log_mel_distance, warped

RATE = 16_000


def hum(pitch: float, bright: float, seconds: float = 1.0, sweep: float = 0.0) -> np.ndarray:
    """Return harmonics that decay by `bright` each, with the pitch rising by the factor `sweep`."""
    time = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * pitch * (time + sweep * time**2 / 2 / seconds)
    return sum(bright**n * np.sin(n * phase) for n in range(1, 20)).astype(np.float32) / 4


def walks(rows: int, columns: int) -> list[list[tuple[int, int]]]:
    """Return all paths from the first cell to the last."""
    if rows == columns == 1:
        return [[(0, 0)]]
    found = []
    for down, right in ((1, 1), (1, 0), (0, 1)):
        if rows > down and columns > right:
            found += [[*walk, (rows - 1, columns - 1)] for walk in walks(rows - down, columns - right)]
    return found


@pytest.mark.parametrize("seed", range(5))
def test_alignment_finds_cheapest_path(seed: int):
    costs = np.random.default_rng(seed).random((4, 5))
    cheapest = min(walks(4, 5), key=lambda walk: sum(costs[cell] for cell in walk))
    assert warped(costs) == pytest.approx(sum(costs[cell] for cell in cheapest) / len(cheapest))


def test_likeness_ignores_tempo_but_not_content():
    speech, slowly, other = hum(120, 0.8, sweep=1), hum(120, 0.8, 1.3, sweep=1), hum(120, 0.3, sweep=1)
    assert log_mel_distance(speech, speech, RATE) == 0
    assert log_mel_distance(speech, slowly, RATE) < 0.5 * log_mel_distance(speech, other, RATE)


def test_spectra_distinguish_voices():
    voices = VoiceSpectra(
        {"bright": [hum(p, 0.9) for p in (100, 130)], "dark": [hum(p, 0.5) for p in (100, 130)]}, RATE
    )
    assert voices.closest(hum(115, 0.88)) == "bright" and voices.closest(hum(115, 0.55)) == "dark"
