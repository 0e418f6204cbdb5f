"""Faster or slower at the same pitch: waveform-similarity overlap-add (WSOLA; Verhelst and Roelands 1993).

Windows of the input, `speed` times as far apart as in the output, are each shifted to where they continue the previous
window best; overlapped and added they are the output. Every window is a function of the samples around it, so
stretched pieces and the stretched whole are bitwise equal.

    stream = Stretched(sound, 24_000, samples=480, speed=1.5)   # an AudioStream around another
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.modalities.speech.family import AudioStream

WINDOW, SEARCH = 0.04, 0.012  # seconds: window length and largest shift, which covers a period of a deep voice
NEARER = 1e-4  # share of the best similarity that the largest shift must exceed


class TimeStretcher:
    """Time stretching of a growing signal `[S]` by WSOLA."""

    def __init__(self, sample_rate: int, speed: float) -> None:
        self.hop, self.reach, self.speed = round(WINDOW / 2 * sample_rate), round(SEARCH * sample_rate), speed
        self.shape = np.hanning(2 * self.hop + 1)[:-1].astype(np.float32)  # overlapped by half they add up to 1
        self.signal = np.zeros(self.hop, np.float32)  # the first half of the first window is silence, and dropped
        self.dropped = 0  # samples of the signal that are no longer kept
        self.count, self.last = 0, 0  # windows added so far, and the start of the last one
        self.open = np.zeros(self.hop, np.float32)  # the last window's second half
        self.length = 0  # samples put in

    def push(self, sound: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the samples that `sound` completes."""
        self.length += len(sound)
        self.signal = np.concatenate([self.signal, sound])
        known, pieces = self.dropped + len(self.signal), []
        while max(self._place() + self.reach, self.last + self.hop) + 2 * self.hop <= known:
            pieces.append(self._window())
        return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)

    def finish(self) -> NDArray[np.float32]:
        """Return the last samples; the whole output is as long as the input divided by `speed`."""
        wanted = round(self.length / self.speed) - max(0, self.count - 1) * self.hop
        pieces = [np.zeros(0, np.float32)]
        self.signal = np.concatenate([self.signal, np.zeros(4 * self.hop + 2 * self.reach, np.float32)])
        while sum(map(len, pieces)) < wanted:
            self.signal = np.concatenate([self.signal, np.zeros(math.ceil(self.hop * self.speed), np.float32)])
            pieces.append(self._window())
        return np.concatenate(pieces)[: max(0, wanted)]

    def _place(self) -> int:
        """Return the start of the next window before its alignment."""
        return round(self.count * self.hop * self.speed)

    def _window(self) -> NDArray[np.float32]:
        """Add the next window, and return the samples that it completes (none for the first window)."""
        place = self._place()
        if self.count:
            wanted = self._at(self.last + self.hop, 2 * self.hop)
            first = max(self.dropped, place - self.reach)
            near = self._at(first, place + self.reach - first + 2 * self.hop)
            likeness = np.correlate(near, wanted)
            power = np.concatenate([[0], np.cumsum(near.astype(np.float64) ** 2)])
            power = power[2 * self.hop :] - power[: -2 * self.hop]
            score = likeness / np.sqrt(power + 1e-9)
            # A shift by one more period is as similar up to rounding, so nearer shifts are preferred.
            moved = np.abs(first - place + np.arange(len(score))) / self.reach
            place = first + int(np.argmax(score - NEARER * np.abs(score).max() * moved))
        taken = self._at(place, 2 * self.hop) * self.shape
        sound = self.open + taken[: self.hop]
        self.open, self.last, self.count = taken[self.hop :], place, self.count + 1
        keep = max(self.dropped, min(self.last + self.hop, self._place() - self.reach))
        self.signal, self.dropped = self.signal[keep - self.dropped :], keep
        return sound if self.count > 1 else sound[:0]

    def _at(self, first: int, count: int) -> NDArray[np.float32]:
        return self.signal[first - self.dropped : first - self.dropped + count]


class StretchedStream:
    """Audio stream at another speed; a code has `samples` samples."""

    def __init__(self, inner: AudioStream, sample_rate: int, samples: float, speed: float) -> None:
        self.inner, self.stretch = inner, TimeStretcher(sample_rate, speed)
        ahead = 2 * self.stretch.hop + self.stretch.reach
        self.look_ahead = inner.look_ahead + math.ceil(ahead / samples)

    def push(self, codes: Tensor) -> Tensor:
        return torch.from_numpy(self.stretch.push(self.inner.push(codes).numpy()))

    def finish(self) -> Tensor:
        last = self.stretch.push(self.inner.finish().numpy())
        return torch.cat([torch.from_numpy(last), torch.from_numpy(self.stretch.finish())])
