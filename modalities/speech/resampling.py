"""Streaming resampling of audio; resampled pieces are together equal to the whole audio resampled at once.

resampler = Resampler(16_000, 24_000)
sent = [resampler.push(piece) for piece in pieces] + [resampler.finish()]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Resampler:
    """Resamples a mono stream; audio that has the wanted rate passes unchanged.

    Args:
        source (int): sample rate of the input, in Hz.
        target (int): sample rate of the output, in Hz.
    """

    def __init__(self, source: int, target: int) -> None:
        import soxr

        self.stream = None if source == target else soxr.ResampleStream(source, target, 1, dtype="float32")

    def push(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the samples that `audio` makes certain; the filter holds back a few milliseconds."""
        return audio if self.stream is None else np.asarray(self.stream.resample_chunk(audio))

    def finish(self) -> NDArray[np.float32]:
        """Return the last samples."""
        rest = np.zeros(0, np.float32)
        return rest if self.stream is None else np.asarray(self.stream.resample_chunk(rest, last=True))


def resample(audio: NDArray[np.float32], source: int, target: int) -> NDArray[np.float32]:
    """Return audio at another rate, bitwise equal to what `Resampler` returns for its pieces."""
    resampler = Resampler(source, target)
    return np.concatenate([resampler.push(audio), resampler.finish()])
