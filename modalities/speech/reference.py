"""Reference recordings of voices to clone: read, checked, mixed to mono and resampled.

    audio = load_reference("me.wav", 16_000)           # float32 [samples]
    audio = load_reference((samples, 44_100), 16_000)  # samples [S] or [S, channels]

The header of a file has its length, so that long recordings are refused without decoding them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import InvalidArgument

Recording: TypeAlias = str | Path | tuple[Any, int]

SHORTEST, LONGEST = 0.5, 30.0  # seconds
SILENCE = 1e-3  # largest absolute sample of a silent recording, where full scale is 1
MAX_VALUES = 2**24  # samples times channels; 30 s of stereo at 192 kHz are 11.5 million
RATES = (4_000, 768_000)  # Hz


def load_reference(reference: Recording, rate: int) -> NDArray[np.float32]:
    """Return the recording as mono samples `[S]` at `rate` Hz; raises InvalidArgument if it is unusable."""
    import soxr

    audio, source_rate = (
        read_recording(Path(reference)) if isinstance(reference, str | Path) else convert_samples(reference)
    )
    check_length(len(audio), source_rate)  # the header may claim more samples than the file has
    if not np.isfinite(audio).all():
        raise InvalidArgument("the reference has samples that are no numbers; give a sound recording.")
    mono = audio.mean(1)
    if np.abs(mono).max() < SILENCE:
        raise InvalidArgument("the reference is silent; give a recording in which the voice is audible.")
    resampled: NDArray[np.float32] = np.asarray(soxr.resample(mono, source_rate, rate), np.float32)
    return resampled


def read_recording(path: Path) -> tuple[NDArray[np.float32], int]:
    """Return the samples `[S, channels]` of a file, and their rate."""
    import soundfile

    if "\0" in str(path) or not path.is_file():
        raise InvalidArgument(f"the reference {str(path)!r} is no file; give a sound file, such as a .wav or .flac.")
    try:
        # Python opens the file, since its errors name the reason.
        with path.open("rb") as content, soundfile.SoundFile(content) as file:
            check_length(file.frames, file.samplerate)
            check_values(file.frames, file.channels)
            return file.read(int(LONGEST * file.samplerate), dtype="float32", always_2d=True), file.samplerate
    except (soundfile.SoundFileError, OSError, TypeError, MemoryError) as error:  # TypeError: no header, no rate
        raise system_error(error, f"the reference {path} cannot be read") or InvalidArgument(
            f"the reference {path} cannot be read as sound; give a .wav, .flac, .mp3 or .ogg file."
        ) from error


def convert_samples(reference: Any) -> tuple[NDArray[np.float32], int]:
    """Return samples `[S, channels]` in -1..1 and the rate of (samples, rate); integers are scaled by their range."""
    try:
        samples, rate = reference
        audio, rate = np.asarray(samples), int(rate)
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:
        raise system_error(error, "the reference cannot be read") or InvalidArgument(
            "the reference is no recording; give a file's path or (samples, rate)."
        ) from error
    if audio.dtype.kind not in "fi" or audio.ndim not in (1, 2):
        raise InvalidArgument("the reference is no recording; samples must be numbers, [S] or [S, channels].")
    check_length(len(audio), rate)
    check_values(*audio.reshape(len(audio), -1).shape)
    full_scale = np.float32(np.iinfo(audio.dtype).max if audio.dtype.kind == "i" else 1)
    return audio.astype(np.float32).reshape(len(audio), -1) / full_scale, rate


def check_values(samples: int, channels: int) -> None:
    """Check that a recording holds a bounded number of values, before any is decoded or converted."""
    if samples * channels > MAX_VALUES:
        raise InvalidArgument(
            f"the reference has {channels} channels of {samples:,} samples, {MAX_VALUES:,} values are the most in all; "
            "give a mono or stereo recording."
        )


def check_length(samples: int, rate: int) -> None:
    """Check the sample rate and the duration of a recording."""
    if not RATES[0] <= rate <= RATES[1]:
        raise InvalidArgument(f"the reference is at {rate} Hz; it must be at {RATES[0]} to {RATES[1]}.")
    seconds = samples / rate
    if not samples:
        raise InvalidArgument("the reference is empty; give a recording of the voice.")
    if not SHORTEST <= seconds <= LONGEST:
        raise InvalidArgument(
            f"the reference lasts {seconds:.4g} s; it must last from {SHORTEST} to {LONGEST:g} s, best are 3 to 15."
        )
