"""Time stretching at constant pitch by waveform-similarity overlap-add (WSOLA; Verhelst and Roelands 1993).

Windows of the input, `speed` times as far apart as in the output, are each shifted to where they continue the previous
window best; overlapped and added they are the output. Every window is a function of the samples around it, so
stretched pieces and the stretched whole are bitwise equal.

    stream = StretchedStream(stream, 24_000, samples=480, speed=1.5)   # an AudioStream around another
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.modalities.speech.family import AudioStream

WINDOW, SEARCH = 0.04, 0.012  # seconds: window length and largest shift, which covers a period of a deep voice
NEARER = 1e-4  # penalty of the largest shift, as a share of the best similarity


class TimeStretcher:
    """Time stretching of a growing signal `[S]` by WSOLA."""

    def __init__(self, sample_rate: int, speed: float) -> None:
        self.hop: int = round(WINDOW / 2 * sample_rate)
        self.max_shift: int = round(SEARCH * sample_rate)
        self.speed: float = speed
        # windows that overlap by half add up to 1
        self.window: NDArray[np.float32] = np.hanning(2 * self.hop + 1)[:-1].astype(np.float32)
        # the first window begins with silence, not emitted
        self.signal: NDArray[np.float32] = np.zeros(self.hop, np.float32)
        self.num_dropped: int = 0  # samples of the signal that are no longer kept
        self.num_windows: int
        self.last_start: int
        self.num_windows, self.last_start = 0, 0  # windows added so far, and the start of the last one
        self.overlap: NDArray[Any] = np.zeros(self.hop, np.float32)  # second half of the last window
        self.num_samples: int = 0  # input samples so far

    def push(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the output samples that `audio` completes."""
        self.num_samples += len(audio)
        self.signal = np.concatenate([self.signal, audio])
        num_known, pieces = self.num_dropped + len(self.signal), []
        while max(self._next_start() + self.max_shift, self.last_start + self.hop) + 2 * self.hop <= num_known:
            pieces.append(self._add_window())
        return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)

    def finish(self) -> NDArray[np.float32]:
        """Return the last samples; the whole output is as long as the input divided by `speed`."""
        remaining = round(self.num_samples / self.speed) - max(0, self.num_windows - 1) * self.hop
        pieces = [np.zeros(0, np.float32)]
        self.signal = np.concatenate([self.signal, np.zeros(4 * self.hop + 2 * self.max_shift, np.float32)])
        while sum(map(len, pieces)) < remaining:
            self.signal = np.concatenate([self.signal, np.zeros(math.ceil(self.hop * self.speed), np.float32)])
            pieces.append(self._add_window())
        return np.concatenate(pieces)[: max(0, remaining)]

    def _next_start(self) -> int:
        """Return the start of the next window before its alignment."""
        return round(self.num_windows * self.hop * self.speed)

    def _add_window(self) -> NDArray[np.float32]:
        """Add the next window, and return the samples that it completes (none for the first window)."""
        start = self._next_start()
        if self.num_windows:
            template = self._samples_at(self.last_start + self.hop, 2 * self.hop)
            first = max(self.num_dropped, start - self.max_shift)
            region = self._samples_at(first, start + self.max_shift - first + 2 * self.hop)
            correlation = np.correlate(region, template)
            power = np.concatenate([[0], np.cumsum(region.astype(np.float64) ** 2)])
            power = power[2 * self.hop :] - power[: -2 * self.hop]
            score = correlation / np.sqrt(power + 1e-9)
            # A shift by one more period is as similar up to rounding, so nearer shifts are preferred.
            shift = np.abs(first - start + np.arange(len(score))) / self.max_shift
            start = first + int(np.argmax(score - NEARER * np.abs(score).max() * shift))
        windowed = self._samples_at(start, 2 * self.hop) * self.window
        audio = self.overlap + windowed[: self.hop]
        self.overlap, self.last_start, self.num_windows = windowed[self.hop :], start, self.num_windows + 1
        keep = max(self.num_dropped, min(self.last_start + self.hop, self._next_start() - self.max_shift))
        self.signal, self.num_dropped = self.signal[keep - self.num_dropped :], keep
        return audio if self.num_windows > 1 else audio[:0]

    def _samples_at(self, first: int, count: int) -> NDArray[np.float32]:
        return self.signal[first - self.num_dropped : first - self.num_dropped + count]


class StretchedStream:
    """Audio stream at another speed; a code has `samples` samples."""

    def __init__(self, inner: AudioStream, sample_rate: int, samples: float, speed: float) -> None:
        self.inner: AudioStream = inner
        self.stretcher: TimeStretcher = TimeStretcher(sample_rate, speed)
        ahead = 2 * self.stretcher.hop + self.stretcher.max_shift
        self.look_ahead: int = inner.look_ahead + math.ceil(ahead / samples)

    def push(self, codes: Tensor) -> Tensor:
        return torch.from_numpy(self.stretcher.push(self.inner.push(codes).numpy()))

    def finish(self) -> Tensor:
        last = self.stretcher.push(self.inner.finish().numpy())
        return torch.cat([torch.from_numpy(last), torch.from_numpy(self.stretcher.finish())])
