"""Every voice at one loudness, and no tick where a sentence starts.

stream = Levelled(sound, gain(-19.5), 16_000)   # a SoundStream around another; its voice measures -19.5 LUFS
"""

from __future__ import annotations

import torch
from torch import Tensor

from polydraft.modalities.speech.family import AudioStream

LOUDNESS = -23.0  # LUFS (EBU R 128)
SETTLING, RISE = 0.03, 0.01  # seconds: a codec's first frames have nothing before them; a voice starts later


def loudness_gain(measured: float) -> float:
    """Factor that brings a voice of so many LUFS to `LOUDNESS`."""
    return float(10 ** ((LOUDNESS - measured) / 20))


class LoudnessNormalisedStream:
    """factor: what samples are multiplied by; the first `SETTLING` of a sentence is silence, and `RISE` follows it."""

    def __init__(self, inner: AudioStream, factor: float, sample_rate: int) -> None:
        self.inner, self.factor, self.sounded = inner, factor, 0  # samples so far
        settling, rise = round(SETTLING * sample_rate), round(RISE * sample_rate)
        self.start = torch.cat([torch.zeros(settling), torch.linspace(0, 1, rise + 2)[1:-1]])

    @property
    def look_ahead(self) -> int:
        return self.inner.look_ahead

    def push(self, codes: Tensor) -> Tensor:
        return self._levelled(self.inner.push(codes))

    def finish(self) -> Tensor:
        return self._levelled(self.inner.finish())

    def _levelled(self, sound: Tensor) -> Tensor:
        start = self.start[self.sounded : self.sounded + len(sound)]
        self.sounded += len(sound)
        sound = sound * self.factor
        sound[: len(start)] *= start
        return sound
