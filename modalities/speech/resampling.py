"""Streaming resampling of audio; resampled pieces are together equal to the whole audio resampled at once.

resampler = Resampler(16_000, 24_000)
pieces = [resampler.push(piece) for piece in audio_pieces] + [resampler.finish()]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Resampler:
    """Streaming resampler of mono audio; audio that already has the target rate passes unchanged.

    Args:
        source (int): sample rate of the input, in Hz.
        target (int): sample rate of the output, in Hz.
    """

    def __init__(self, source: int, target: int) -> None:
        import soxr

        self.stream: Any | None = None if source == target else soxr.ResampleStream(source, target, 1, dtype="float32")

    def push(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the samples that `audio` completes; the filter delays the last few milliseconds."""
        return audio if self.stream is None else np.asarray(self.stream.resample_chunk(audio))

    def finish(self) -> NDArray[np.float32]:
        """Return the last samples."""
        empty = np.zeros(0, np.float32)
        return empty if self.stream is None else np.asarray(self.stream.resample_chunk(empty, last=True))


def resample(audio: NDArray[np.float32], source: int, target: int) -> NDArray[np.float32]:
    """Return audio at another rate, bitwise equal to what `Resampler` returns for its pieces.

    Args:
        audio (NDArray): [samples], mono.
        source (int): sample rate of `audio`, in Hz.
        target (int): sample rate of the result, in Hz.
    """
    resampler = Resampler(source, target)
    return np.concatenate([resampler.push(audio), resampler.finish()])
