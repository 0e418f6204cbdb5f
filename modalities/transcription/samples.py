"""Sound of a recording as samples, for models whose processor makes features of them, and where to cut it.

    buffer = SampleBuffer(16_000)
    for block in open_sound("talk.mp3", sample_rate=16_000):
        buffer.push(block)
    num_frames = quiet_cut(buffer.power[first:], longest=3000)     # frames of 10 ms
    samples = buffer.window(first, num_frames)

Samples are kept on disk once they are many, so memory stays flat.
"""

from __future__ import annotations

import tempfile
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.transcription.segments import FRAME_SECONDS

SPOOLED_BYTES = 1 << 26  # of samples in memory: 17 minutes at 16 kHz
PAUSE_FRAMES = 30  # frames of the pause that a cut is put into
EARLIEST_CUT = 0.5  # share of the longest piece before which no cut is made


class SampleBuffer:
    """Samples of a sound that grows; not for several threads at once.

    Args:
        sample_rate (int): Hz; a frame is a hundredth of it.
    """

    def __init__(self, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self.hop_length: int = round(sample_rate * FRAME_SECONDS)
        self.num_samples: int = 0  # so far
        self._power: list[NDArray[np.float32]] = []  # of whole frames, by push
        self._rest: NDArray[np.float32] = np.zeros(0, np.float32)  # samples of a frame that is not whole yet
        self._file: Any = tempfile.SpooledTemporaryFile(SPOOLED_BYTES)  # noqa: SIM115 - `close` closes it

    @property
    def duration(self) -> float:
        """Return the seconds of sound so far."""
        return self.num_samples / self.sample_rate

    @property
    def num_sound_frames(self) -> int:
        """Return the number of frames, all of which hold sound."""
        return self.num_frames

    @property
    def num_frames(self) -> int:
        """Return the number of frames, the last of which may be shorter."""
        return -(-self.num_samples // self.hop_length)

    @property
    def power(self) -> NDArray[np.float32]:
        """Return the mean square of the samples of every frame, `[num_frames]`."""
        tail = [np.square(self._rest).mean(keepdims=True)] if len(self._rest) else []
        return np.concatenate([*self._power, *tail, np.zeros(0, np.float32)])

    def push(self, samples: NDArray[np.float32]) -> None:
        """Append sound.

        Args:
            samples (NDArray): [S] mono, at the buffer's rate.

        Raises:
            InvalidArgument: They are not one-dimensional, or not finite.
            SystemRefusal: The disk is full.
        """
        samples = np.ascontiguousarray(samples, np.float32)
        if samples.ndim != 1 or not np.isfinite(samples).all():
            raise InvalidArgument(f"sound of shape {samples.shape} was pushed; push finite mono samples, [S].")
        try:
            self._file.seek(0, 2)
            self._file.write(samples.data)
        except OSError as error:
            raise system_error(error, "samples cannot be kept in a temporary file") or error from error
        self.num_samples += len(samples)
        rest = np.concatenate([self._rest, samples])
        num_whole = len(rest) // self.hop_length * self.hop_length
        self._power.append(np.square(rest[:num_whole]).reshape(-1, self.hop_length).mean(1))
        self._rest = rest[num_whole:]

    def window(self, first_frame: int, num_frames: int) -> NDArray[np.float32]:
        """Return the samples of frames, `[S]`, as many as there are."""
        self._file.seek(4 * self.hop_length * first_frame)
        content = bytearray(self._file.read(4 * self.hop_length * num_frames))
        return np.frombuffer(content, np.float32)

    def close(self) -> None:
        """Give memory and disk back; no more windows can be read."""
        self._file.close()

    def __enter__(self) -> SampleBuffer:
        """Return the buffer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the buffer."""
        self.close()


def quiet_cut(power: NDArray[np.float32], longest: int) -> int:
    """Return the number of frames of the next piece of a sound: all of it, or those up to the quietest moment.

    The moment is sought in the second half of the longest piece; of several that are as quiet it is the last.

    Args:
        power (NDArray): [F] mean square of every frame.
        longest (int): Most frames of a piece.
    """
    if len(power) <= longest:
        return len(power)
    pause = min(PAUSE_FRAMES, max(1, longest // 10))
    first = int(longest * EARLIEST_CUT)
    sums = np.convolve(power[first:longest].astype(np.float64), np.ones(pause), "valid")
    quietest = len(sums) - 1 - int(sums[::-1].argmin())
    return first + quietest + (pause + 1) // 2
