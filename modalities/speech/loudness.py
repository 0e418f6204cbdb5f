"""Loudness normalisation of voices, and a fade-in that removes the click at the start of a sentence.

stream = LoudnessNormalisedStream(stream, loudness_gain(-19.5), 16_000)   # an AudioStream of a voice at -19.5 LUFS
"""

from __future__ import annotations

import torch
from torch import Tensor

from polydraft.modalities.speech.family import AudioStream

LOUDNESS = -23.0  # LUFS (EBU R 128)
SETTLING, RISE = 0.03, 0.01  # seconds of silence, since a codec's first frames lack context, and of fade-in


def loudness_gain(lufs: float) -> float:
    """Return the factor that brings a voice of `lufs` LUFS to `LOUDNESS`."""
    return float(10 ** ((LOUDNESS - lufs) / 20))


class LoudnessNormalisedStream:
    """Audio stream multiplied by `factor`, with `SETTLING` seconds of silence and a fade-in of `RISE` seconds."""

    def __init__(self, inner: AudioStream, factor: float, sample_rate: int) -> None:
        self.inner: AudioStream
        self.factor: float
        self.num_samples: int
        self.inner, self.factor, self.num_samples = inner, factor, 0  # samples so far
        settling, rise = round(SETTLING * sample_rate), round(RISE * sample_rate)
        self.start: Tensor = torch.cat([torch.zeros(settling), torch.linspace(0, 1, rise + 2)[1:-1]])

    @property
    def look_ahead(self) -> int:
        return self.inner.look_ahead

    def push(self, codes: Tensor) -> Tensor:
        return self._apply_gain(self.inner.push(codes))

    def finish(self) -> Tensor:
        return self._apply_gain(self.inner.finish())

    def _apply_gain(self, audio: Tensor) -> Tensor:
        start = self.start[self.num_samples : self.num_samples + len(audio)]
        self.num_samples += len(audio)
        audio = audio * self.factor
        audio[: len(start)] *= start
        return audio
