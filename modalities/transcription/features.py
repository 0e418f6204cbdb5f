"""Log-mel features of Whisper in a stream: sound goes in by blocks, windows of frames come out, memory stays flat.

    log_mel = LogMel.from_folder(folder)      # the settings of preprocessor_config.json
    with log_mel.stream() as features:
        for block in open_sound("talk.mp3"):
            features.push(block)
            window = features.window(0, 3000)  # [mels, 3000]; at any time, as if the sound ended here

Values are those of transformers' WhisperFeatureExtractor within 1e-5, for the sound so far: up to 30 seconds are padded
with silence to 30 seconds, and longer sound is not padded. Quiet frames are clamped relative to the maximum of the
whole recording, so unclamped frames are kept, on disk once they are many, and a window is clamped when it is read.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import InvalidArgument, WeightsError
from polydraft.core.folders.fields import NumberRange, check_fields
from polydraft.core.folders.json_files import is_present, read_json, read_settings

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
EXTRACTOR = "WhisperFeatureExtractor"
SAMPLE_RATE = 16_000  # Hz, of the sound that `open_sound` returns
HINTS = {
    "feature_size": NumberRange(int, 1, 512), "n_fft": NumberRange(int, 16, 4096),
    "hop_length": NumberRange(int, 1, 4096), "chunk_length": NumberRange(int, 1, 600),
    "sampling_rate": NumberRange(int, SAMPLE_RATE, SAMPLE_RATE), "padding_value": NumberRange(float, 0, 0),
    "dither": NumberRange(float, 0, 0),
}  # fmt: skip
LOWEST_POWER, DYNAMIC_RANGE = 1e-10, 8.0  # power that counts as silence; powers of ten below the maximum that are kept
SILENCE = -10.0  # log10 of the lowest power
FRAMES_AT_ONCE = 1000  # of a Fourier transform, which takes 4 MB
SPOOLED_BYTES = 1 << 26  # of frames in memory: 35 minutes of 80 mel bands


@dataclass(frozen=True)
class LogMel:
    """Settings of log-mel features, as WhisperFeatureExtractor has them."""

    num_mels: int = 80  # mel bands, its `feature_size`
    n_fft: int = 400  # samples of a frame
    hop_length: int = 160  # samples from one frame to the next
    sample_rate: int = SAMPLE_RATE  # Hz
    chunk_length: int = 30  # seconds to which shorter sound is padded with silence
    draft: LogMel | None = None  # settings of a draft model, if its features are others: of the same sound

    def __post_init__(self) -> None:
        """Check that frames leave no sample out."""
        if not 1 <= self.hop_length <= self.n_fft // 2 or self.n_fft % 2:
            raise InvalidArgument(
                f"n_fft is {self.n_fft} and hop_length {self.hop_length}; n_fft must be even and twice as large."
            )
        if self.chunk_samples <= self.n_fft:
            raise InvalidArgument(f"chunk_length is {self.chunk_length} s, less than a frame; give a longer one.")

    @classmethod
    def from_folder(cls, folder: Path) -> LogMel:
        """Read the settings of a model folder.

        Args:
            folder (Path): Holds preprocessor_config.json, or a processor_config.json with `feature_extractor` in it.

        Raises:
            WeightsError: A file is missing or damaged, or is that of another feature extractor.
        """
        file, nested = folder / PREPROCESSOR, folder / PROCESSOR
        if is_present(nested) and not is_present(file):
            file, settings = nested, read_json(nested).get("feature_extractor")
        else:
            settings = read_settings(file)
        kind = settings.get("feature_extractor_type", EXTRACTOR) if isinstance(settings, dict) else None
        if not isinstance(settings, dict) or kind != EXTRACTOR:
            raise WeightsError(f"{file} has the settings of no {EXTRACTOR}; give the folder of a Whisper model.")
        check_fields(settings, HINTS, file)
        try:
            return cls(
                settings.get("feature_size", 80), settings.get("n_fft", 400), settings.get("hop_length", 160),
                SAMPLE_RATE, settings.get("chunk_length", 30),
            )  # fmt: skip
        except InvalidArgument as error:
            raise WeightsError(f"{file} contradicts itself ({error}); download it again.") from error

    @classmethod
    def from_extractor(cls, extractor: Any) -> LogMel:
        """Return the settings of a transformers WhisperFeatureExtractor; dither and padding with sound are errors."""
        if extractor.dither or extractor.padding_value:
            raise InvalidArgument(
                f"the feature extractor has dither {extractor.dither} and padding_value {extractor.padding_value}; "
                "both must be 0."
            )
        return cls(
            extractor.feature_size, extractor.n_fft, extractor.hop_length, extractor.sampling_rate,
            extractor.chunk_length,
        )  # fmt: skip

    @property
    def chunk_samples(self) -> int:
        """Return the number of samples to which shorter sound is padded."""
        return self.chunk_length * self.sample_rate

    @property
    def chunk_frames(self) -> int:
        """Return the number of frames that a model reads at once."""
        return self.chunk_samples // self.hop_length

    @cached_property
    def hann_window(self) -> Tensor:
        """Return the window of a frame, `[n_fft]`."""
        return torch.hann_window(self.n_fft)

    @cached_property
    def mel_filters(self) -> Tensor:
        """Return the mel filter bank, `[n_fft // 2 + 1, num_mels]`."""
        from transformers.audio_utils import mel_filter_bank

        filters = mel_filter_bank(
            num_frequency_bins=1 + self.n_fft // 2, num_mel_filters=self.num_mels, min_frequency=0.0,
            max_frequency=8000.0, sampling_rate=self.sample_rate, norm="slaney", mel_scale="slaney",
        )  # fmt: skip
        return torch.from_numpy(filters).float()

    def frames(self, samples: Tensor) -> Tensor:
        """Return log10 of the mel power of every whole frame in `samples`, neither clamped nor scaled.

        Args:
            samples (Tensor): [S] float32, from `n_fft // 2` samples before the centre of the first frame.

        Returns:
            Tensor: [F, num_mels].
        """
        spectrum = torch.stft(
            samples, self.n_fft, self.hop_length, window=self.hann_window, center=False, return_complex=True
        )
        power = torch.view_as_real(spectrum.transpose(0, 1)).square().sum(-1)
        return (power @ self.mel_filters).clamp_(min=LOWEST_POWER).log10_()

    def stream(self) -> LogMelStream:
        """Open a stream of features, which takes sound from its beginning."""
        return LogMelStream(self)


class LogMelStream:
    """Log-mel features of a sound that grows; not for several threads at once.

    Args:
        settings (LogMel): What is computed.
    """

    def __init__(self, settings: LogMel) -> None:
        self.settings = settings
        # the features of a draft model
        self.draft: LogMelStream | None = None if settings.draft is None else settings.draft.stream()
        self.num_samples: int = 0  # so far
        self._half = settings.n_fft // 2
        # Samples from the beginning of the first frame that is not complete yet; the mirrored beginning comes first.
        self._rest: NDArray[np.float32] = np.zeros(0, np.float32)
        self._num_stored = 0  # complete frames in the file
        self._maximum = SILENCE  # of the complete frames
        self._tail: Tensor | None = None  # [frames, mels] that follow them if the sound ends here
        self._file: Any = tempfile.SpooledTemporaryFile(SPOOLED_BYTES)  # noqa: SIM115 - `close` closes it

    @property
    def sample_rate(self) -> int:
        """Return the rate of the sound, in Hz."""
        return self.settings.sample_rate

    @property
    def duration(self) -> float:
        """Return the seconds of sound so far."""
        return self.num_samples / self.sample_rate

    @property
    def num_frames(self) -> int:
        """Return the number of frames that transformers has of the sound so far: at least those of 30 seconds."""
        return max(self.num_samples, self.settings.chunk_samples) // self.settings.hop_length

    @property
    def num_sound_frames(self) -> int:
        """Return the number of frames that hold sound, without the padding to 30 seconds."""
        return min(self.num_frames, -(-self.num_samples // self.settings.hop_length))

    @property
    def maximum(self) -> float:
        """Return the largest log10 mel power so far, relative to which quiet frames are clamped."""
        tail = self._tail_frames()
        return max(self._maximum, float(tail.max())) if len(tail) else self._maximum

    def push(self, samples: NDArray[np.float32]) -> None:
        """Append sound.

        Args:
            samples (NDArray): [S] mono, at 16 kHz.

        Raises:
            InvalidArgument: They are not one-dimensional, or not finite.
            SystemRefusal: The disk is full.
        """
        if np.ndim(samples) != 1 or not np.isfinite(samples).all():
            raise InvalidArgument(f"sound of shape {np.shape(samples)} was pushed; push finite mono samples, [S].")
        if self.draft is not None:
            self.draft.push(samples)
        size = FRAMES_AT_ONCE * self.settings.hop_length
        for start in range(0, len(samples), size):
            self._push_piece(np.asarray(samples[start : start + size], np.float32))

    def window(self, first_frame: int, num_frames: int) -> Tensor:
        """Return frames as the model reads them, as if the sound ended here.

        Args:
            first_frame (int): From 0.
            num_frames (int): Frames beyond the end are 0.0, with which transformers pads the last window.

        Returns:
            Tensor: [num_mels, num_frames] float32.
        """
        if first_frame < 0 or num_frames < 1:
            raise InvalidArgument(
                f"a window of {num_frames} frames from frame {first_frame} does not exist; count from 0, and ask for "
                "at least 1."
            )
        last = min(first_frame + num_frames, self.num_frames)
        parts = [self._read_stored(first_frame, min(last, self._num_stored))]
        tail, position = self._tail_frames(), max(first_frame - self._num_stored, 0)
        parts.append(tail[position : max(last - self._num_stored, position)])
        num_silent = max(last - first_frame, 0) - sum(map(len, parts))
        parts.append(torch.full((num_silent, self.settings.num_mels), SILENCE))
        values = torch.cat(parts).clamp_(min=self.maximum - DYNAMIC_RANGE).add_(4.0).div_(4.0)
        result = torch.zeros(self.settings.num_mels, num_frames)
        result[:, : len(values)] = values.T
        return result

    def close(self) -> None:
        """Give memory and disk back; no more windows can be read."""
        self._file.close()
        if self.draft is not None:
            self.draft.close()

    def __enter__(self) -> LogMelStream:
        """Return the stream itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream."""
        self.close()

    def _push_piece(self, samples: NDArray[np.float32]) -> None:
        """Append at most `FRAMES_AT_ONCE` hops of samples and store the frames that they complete."""
        is_begun = self.num_samples > self._half  # before, too little is there to mirror
        self.num_samples += len(samples)
        self._rest, self._tail = np.concatenate([self._rest, samples]), None
        if self.num_samples <= self._half:
            return
        if not is_begun:
            self._rest = mirror_begin(self._rest, self._half)
        num_complete = (len(self._rest) - self.settings.n_fft) // self.settings.hop_length + 1
        if num_complete < 1:
            return
        frames = self.settings.frames(torch.from_numpy(self._rest))
        self._maximum = max(self._maximum, float(frames.max()))
        try:
            self._file.seek(0, 2)
            self._file.write(frames.contiguous().numpy().data)
        except OSError as error:
            raise system_error(error, "features cannot be kept in a temporary file") or error from error
        self._num_stored += num_complete
        self._rest = self._rest[num_complete * self.settings.hop_length :].copy()

    def _read_stored(self, first: int, last: int) -> Tensor:
        """Return complete frames, `[last - first, mels]`; none if `last` is not larger."""
        num_mels = self.settings.num_mels
        if last <= first:
            return torch.zeros(0, num_mels)
        self._file.seek(4 * num_mels * first)
        content = bytearray(self._file.read(4 * num_mels * (last - first)))
        return torch.frombuffer(content, dtype=torch.float32).view(-1, num_mels)

    def _tail_frames(self) -> Tensor:
        """Return the frames `[F, mels]` behind the complete ones that hold sound, if it ends here."""
        if self._tail is None:
            self._tail = self._compute_tail()
        return self._tail

    def _compute_tail(self) -> Tensor:
        """Compute the frames over the end of the sound, which is padded to 30 seconds and then mirrored."""
        settings, half = self.settings, self._half
        length = max(self.num_samples, settings.chunk_samples)
        last = min(self.num_frames, -(-(self.num_samples + half) // settings.hop_length))
        if last <= self._num_stored or not self.num_samples:
            return torch.zeros(0, settings.num_mels)
        rest, start = self._rest, settings.hop_length * self._num_stored - half
        if self.num_samples <= half:  # nothing is mirrored yet
            rest = mirror_begin(np.concatenate([rest, np.zeros(half + 1, np.float32)]), half)
        end = settings.hop_length * (last - 1) + half
        samples = np.zeros(end - start, np.float32)
        samples[: len(rest)] = rest[: len(samples)]
        if (excess := end - length) > 0:
            edge = length - start
            samples[edge:] = samples[edge - 1 - excess : edge - 1][::-1]
        return settings.frames(torch.from_numpy(samples))


def mirror_begin(samples: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Return samples with `size` of them mirrored before the first, which is not repeated."""
    return np.concatenate([samples[1 : size + 1][::-1], samples])
