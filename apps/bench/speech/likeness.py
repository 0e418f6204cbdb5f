"""Tempo-invariant distance of two pieces of speech, and speaker identification.

distance = log_mel_distance(audio, reference, 16_000)      # dB
voices = Voices({"slt": [audio, ...], "rms": [...]}, 16_000); voices.closest(audio)
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

WINDOW, HOP, FFT, BANDS = 0.04, 0.02, 1024, 40  # seconds, seconds, points, mel bands
SHAPES = 20  # cosines along a log-mel spectrum that a voice is known by: its shape, not its loudness
QUIET = 30.0  # dB below the loudest frame; what is below is no voice
Sound = NDArray[np.float32]


def log_mel(audio: Sound, sample_rate: int) -> NDArray[np.float64]:
    """Return the log mel spectrogram `[T, BANDS]` in dB."""
    length = int(WINDOW * sample_rate)
    padded = np.pad(np.asarray(audio, np.float64), (0, max(0, FFT - len(audio))))
    return spectrogram(
        padded, window_function(length, "hann"), length, int(HOP * sample_rate), FFT, 2.0,
        mel_filters=bank(sample_rate), mel_floor=1e-6, log_mel="dB",
    ).T  # fmt: skip


@cache
def bank(sample_rate: int) -> NDArray[np.float64]:
    return mel_filter_bank(FFT // 2 + 1, BANDS, 0.0, sample_rate / 2, sample_rate, "slaney", "slaney")


@cache
def cosines() -> NDArray[np.float64]:
    """Return an orthonormal cosine basis `[BANDS, SHAPES]` without the constant."""
    waves = np.outer(np.arange(BANDS) + 0.5, np.arange(1, SHAPES + 1))
    return np.cos(np.pi / BANDS * waves) * (2 / BANDS) ** 0.5


def log_mel_distance(audio: Sound, reference: Sound, sample_rate: int) -> float:
    """Mean dB between frames laid side by side by dynamic time warping (Sakoe and Chiba 1978)."""
    ours, theirs = (log_mel(x, sample_rate) for x in (audio, reference))
    costs = np.abs(ours[:, None] - theirs[None]).mean(-1)
    return warped(costs)


def warped(costs: NDArray[np.float64]) -> float:
    """Mean cost a step of the cheapest path through `costs` `[A, B]` that moves on in one or both.

    Cells of an anti-diagonal depend on the two before it alone, so each is one vector operation.
    """
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    steps = np.zeros((rows + 1, columns + 1))
    total[0, 0] = 0
    for diagonal in range(2, rows + columns + 1):
        row = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        column = diagonal - row
        froms = ((row - 1, column - 1), (row - 1, column), (row, column - 1))
        best = np.argmin([total[place] for place in froms], axis=0)
        total[row, column] = costs[row - 1, column - 1] + np.choose(best, [total[place] for place in froms])
        steps[row, column] = 1 + np.choose(best, [steps[place] for place in froms])
    return float(total[-1, -1] / steps[-1, -1])


class VoiceSpectra:
    """A Gaussian a voice over the shapes of its spectra (Reynolds 1995, with one component)."""

    def __init__(self, examples: dict[str, list[Sound]], sample_rate: int) -> None:
        self.sample_rate = sample_rate
        shapes = {
            voice: np.concatenate([self.shapes(one) for one in recordings]) for voice, recordings in examples.items()
        }
        self.means: dict[str, Any] = {voice: frames.mean(0) for voice, frames in shapes.items()}
        self.spreads: dict[str, Any] = {voice: frames.var(0) + 1e-3 for voice, frames in shapes.items()}

    def shapes(self, audio: Sound) -> NDArray[np.float64]:
        """Return spectral shapes `[T, SHAPES]` of the loud frames."""
        spectra = log_mel(audio, self.sample_rate)
        loudness = spectra.mean(1)
        return spectra[loudness > loudness.max() - QUIET] @ cosines()

    def closest(self, audio: Sound) -> str:
        """Return the voice with the highest likelihood for the audio."""
        frames = self.shapes(audio)

        def likelihood(voice: str) -> float:
            spread = self.spreads[voice]
            return float(-((frames - self.means[voice]) ** 2 / spread + np.log(spread)).sum(1).mean())

        return max(self.means, key=likelihood)
