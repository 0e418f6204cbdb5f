"""Read sound of any kind in blocks: files, bytes, open files, pipes and arrays become mono float32 at 16 kHz.

    with open_sound("talk.mp3") as sound:     # also a video, bytes, an open binary file, or (samples, rate)
        for block in sound:                   # float32 [S], a few seconds each
            features.push(block)

FFmpeg decodes, through PyAV, and no more of a file is in memory than a block. It is given an open file and a list of
container formats, never a name or a protocol: it opens no address, and no file that a playlist or a script refers to.
Timestamps inside a file are not followed: where a recorder paused, the sound goes on without a gap.
"""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polydraft.core.checks.extras import optional_import
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import InvalidArgument, PolydraftError, PromptError
from polydraft.modalities.image_io import REMOTE, SIGNATURE_LENGTH, detect_format
from polydraft.modalities.speech.reference import RATES
from polydraft.modalities.speech.resampling import Resampler

SoundSource: TypeAlias = "str | Path | bytes | IO[bytes] | tuple[Any, int]"
Pieces: TypeAlias = Iterator[tuple[NDArray[Any], int]]  # samples [channels, S] of any dtype, and their rate in Hz

SAMPLE_RATE = 16_000  # Hz, of blocks unless another rate is asked for
BLOCK_SECONDS = 5.0
MAX_CHANNELS = 64
MAX_PLANES = 8  # PyAV counts planes until a null pointer, which does not follow so many
MAX_SAMPLE = 2.0**31  # largest absolute sample, where full scale is 1; its power is finite in float32
MISSING_SECONDS = 1.0  # a file whose header promises so much more than it holds is cut off
SPOOLED_BYTES = 1 << 26  # of a pipe that must be read to its end first; more of it goes to disk
CONTAINERS = (  # FFmpeg's names; none of them refers to other files
    "wav", "w64", "aiff", "au", "caf", "flac", "mp3", "aac", "ogg", "mov", "matroska", "amr", "asf", "avi", "flv",
    "mpegts", "wv",
)  # fmt: skip
EXACT_DURATIONS = ("flac", "aiff", "mov", "matroska")  # containers whose header counts the samples or time of a track
INDEXED = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")  # first boxes of MP4, whose index may be at the end
ADVICE = "give a whole file such as .wav, .flac, .mp3, .ogg, .m4a, .mp4 or .webm"


def open_sound(
    source: SoundSource, *, max_seconds: float | None = None, max_bytes: int | None = None,
    block_seconds: float = BLOCK_SECONDS, sample_rate: int = SAMPLE_RATE,
) -> SoundReader:  # fmt: skip
    """Open sound of any kind for reading in blocks.

    Args:
        source (SoundSource): Path of a sound file, or of a video, whose first sound track is taken; a file's content;
            a binary file, read from its position on, which may be a pipe; or (samples, rate) with samples [S] or
            [S, channels], integers or floating point. Channels are averaged.
        max_seconds (float | None): Longest sound that is read; None: any.
        max_bytes (int | None): Largest file that is read, in bytes; None: any. It does not apply to arrays.
        block_seconds (float): Approximate length of blocks, from 0.01 to 30 seconds.
        sample_rate (int): Hz, of the blocks.

    Returns:
        SoundReader: Iterator over blocks, which closes itself at the end and on errors. A file given open stays open.

    Raises:
        PromptError: There is no such file, or no sound that can be read in it. Iteration raises it for a file that is
            broken further on, or longer than `max_seconds`, with the second at which it broke.
        MissingPackage: PyAV is not installed; arrays do without it.
    """
    check_limits(max_seconds, max_bytes, block_seconds)
    if isinstance(source, tuple):
        samples, rate = check_array(source)
        pieces = slice_array(samples, rate, block_seconds)
        blocks = convert_pieces(pieces, "the sound", max_seconds or math.inf, sample_rate)
        return SoundReader(samples.shape[1] / rate, blocks, ExitStack())
    with ExitStack() as resources:
        name, opened = open_source(source, resources)
        file = SoundBytes(opened, name, max_bytes)
        if not file.is_seekable and file.peek(SIGNATURE_LENGTH)[4:8] in INDEXED:
            file = SoundBytes(spool(file, resources), name, max_bytes)
        container = open_container(file, resources)
        stream = find_stream(container, name)
        pieces = decode(container, stream, file, block_seconds)
        return SoundReader(
            stated_duration(container, stream),
            convert_pieces(pieces, name, max_seconds or math.inf, sample_rate),
            resources.pop_all(),
        )


class SoundReader(Iterator[NDArray[np.float32]]):
    """Iterator over the blocks of a sound, mono float32 `[S]`; `open_sound` makes it.

    Args:
        duration (float | None): Seconds that the container states, which may be an estimate; None: it states none.
        blocks (Iterator): The blocks.
        resources (ExitStack): What is closed at the end.
    """

    def __init__(
        self, duration: float | None, blocks: Iterator[NDArray[np.float32]], resources: ExitStack
    ) -> None:  # fmt: skip
        self.duration = duration
        self._blocks = blocks
        self._resources = resources

    def __next__(self) -> NDArray[np.float32]:
        """Return the next block; raise PromptError where the sound is broken, and StopIteration at its end."""
        try:
            return next(self._blocks)
        except BaseException:  # StopIteration too
            self.close()
            raise

    def close(self) -> None:
        """Stop reading and close what `open_sound` opened; no more blocks follow."""
        self._blocks = iter(())
        self._resources.close()

    def __enter__(self) -> SoundReader:
        """Return the sound itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the sound."""
        self.close()


class SoundBytes:
    """Binary file as FFmpeg reads it: with a limit of bytes, and with errors kept for the caller.

    FFmpeg takes a failed read for the end of the file, so that an exception would be lost or come up in a later call.

    Args:
        file (IO[bytes]): The file, read from its position on.
        name (str): What errors call it.
        max_bytes (int | None): Largest size.

    Raises:
        PromptError: A seekable file is empty or larger than `max_bytes`, or it is no binary file.
    """

    def __init__(self, file: IO[bytes], name: str, max_bytes: int | None) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self.error: BaseException | None = None
        self._file = file
        self._read = getattr(file, "read1", file.read)  # of a pipe what is there
        self._num_read = 0
        self._pending = b""
        try:
            self.is_seekable: bool = bool(file.seekable()) if hasattr(file, "seekable") else False
            if self.is_seekable:
                self._read = file.read
                self._start = file.tell()
                size = file.seek(0, io.SEEK_END) - self._start
                file.seek(self._start)
                self._check_size(size)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            self.error = error
        self.raise_error()
        if not self.peek(1):
            raise PromptError(f"{name} is empty; {ADVICE}.")

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end and after an error."""
        if self.error is None and not self._pending:
            self._pending = self._read_safely(size)
        content, self._pending = self._pending[:size], self._pending[size:]
        return content

    def peek(self, size: int) -> bytes:
        """Return the next bytes without taking them, fewer only at the end; raise what reading raised."""
        while len(self._pending) < size and (content := self._read_safely(size)):
            self._pending += content
        self.raise_error()
        return self._pending[:size]

    def seekable(self) -> bool:
        """Return whether the file can be read in any order."""
        return self.is_seekable

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another position, relative to where the file began, and return it; -1 on an error."""
        try:
            if whence == io.SEEK_CUR:
                offset -= len(self._pending)
            self._pending = b""
            return self._file.seek(offset + (self._start if whence == io.SEEK_SET else 0), whence) - self._start
        except BaseException as error:  # noqa: BLE001 - FFmpeg cannot pass it on; `raise_error` does
            self.error = error
            return -1

    def tell(self) -> int:
        """Return the position relative to where the file began."""
        return self._file.tell() - self._start - len(self._pending)

    def raise_error(self) -> None:
        """Raise the error that reading met, if any; faults of the file are PromptErrors."""
        if self.error is None:
            return
        if isinstance(self.error, PolydraftError) or not isinstance(self.error, Exception):
            raise self.error
        raise system_error(self.error, f"{self.name} cannot be read") or PromptError(
            f"{self.name} cannot be read ({str(self.error)[:120] or type(self.error).__name__}); give an open binary "
            "file, or a path."
        ) from self.error

    def _read_safely(self, size: int) -> bytes:
        """Return bytes of the file; none at the end and on an error, which is kept."""
        try:
            content = self._read(size)
            if not isinstance(content, (bytes, bytearray, memoryview)):
                raise TypeError(f"it reads {type(content).__name__} in place of bytes")
            self._num_read += len(content)
            if not self.is_seekable:
                self._check_size(self._num_read)
            return bytes(content)
        except BaseException as error:  # noqa: BLE001 - also KeyboardInterrupt, which FFmpeg cannot pass on
            self.error = error
            return b""

    def _check_size(self, size: int) -> None:
        """Raise PromptError for more bytes than are allowed."""
        if self.max_bytes is not None and size > self.max_bytes:
            raise PromptError(f"{self.name} has more than {self.max_bytes:,} bytes; give a shorter recording.")


def check_limits(max_seconds: float | None, max_bytes: int | None, block_seconds: float) -> None:
    """Raise InvalidArgument for limits that no sound can keep."""
    if max_seconds is not None and not max_seconds > 0:
        raise InvalidArgument(f"max_seconds is {max_seconds}; give a number above 0, or None.")
    if max_bytes is not None and max_bytes < 1:
        raise InvalidArgument(f"max_bytes is {max_bytes}; give a whole number from 1, or None.")
    if not 0.01 <= block_seconds <= 30:
        raise InvalidArgument(f"block_seconds is {block_seconds}; give a number from 0.01 to 30.")


def open_source(source: Any, resources: ExitStack) -> tuple[str, IO[bytes]]:
    """Return the name of a sound in errors, and its binary file; `resources` closes what is opened here."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return "the sound", io.BytesIO(source)
    if isinstance(source, (str, Path)):
        return f"{source!s:.200}", resources.enter_context(open_path(source))
    if not callable(getattr(source, "read", None)):
        raise PromptError(
            f"a sound is a {type(source).__name__}; give a file's path, its bytes, an open binary file, or "
            "(samples, rate)."
        )
    name = getattr(source, "name", None)
    return f"{name:.200}" if isinstance(name, str) else "the sound", source


def open_path(path: str | Path) -> IO[bytes]:
    """Open a local file or named pipe; raise PromptError for anything else."""
    name = f"{path!s:.200}"
    if str(path).startswith(REMOTE):
        raise PromptError(f"{name!r:.80} is an address, and nothing is fetched; save the sound and give its file.")
    file = Path(path)
    try:
        if "\0" in str(path) or not (file.is_file() or file.is_fifo()):
            raise PromptError(f"{name!r} is {'a folder' if is_folder(file) else 'no file'}; {ADVICE}.")
        return file.open("rb")
    except (OSError, ValueError) as error:
        if isinstance(error, PolydraftError):
            raise
        raise system_error(error, f"{name} cannot be read") or PromptError(
            f"{name} cannot be read ({error}); {ADVICE}."
        ) from error


def is_folder(path: Path) -> bool:
    """Return whether a path is that of a folder; paths that cannot exist are none."""
    return "\0" not in str(path) and path.is_dir()


def spool(file: SoundBytes, resources: ExitStack) -> IO[bytes]:
    """Return a temporary seekable copy of a pipe, which `resources` closes."""
    copy: Any = tempfile.SpooledTemporaryFile(SPOOLED_BYTES)  # noqa: SIM115 - `resources` closes it
    resources.enter_context(copy)
    try:
        while content := file.read(1 << 20):
            copy.write(content)
        file.raise_error()
        copy.seek(0)
    except OSError as error:
        if isinstance(error, PolydraftError):
            raise
        raise system_error(error, f"{file.name} cannot be copied") or PromptError(
            f"{file.name} cannot be copied ({error}); save it and give its file."
        ) from error
    opened: IO[bytes] = copy
    return opened


def open_container(file: SoundBytes, resources: ExitStack) -> Any:
    """Return the PyAV container of a file, which `resources` closes; raise PromptError if it is none with sound."""
    with optional_import("reading sound files"):
        import av
    signature = file.peek(SIGNATURE_LENGTH)
    try:
        container = av.open(
            file,
            "r",
            # no container of the list refers to other files, and no protocol of this name could open them
            options={"format_whitelist": ",".join(CONTAINERS), "protocol_whitelist": "none"},
            metadata_errors="replace",  # tags need not be UTF-8
        )
    except Exception as error:  # parsers of headers raise nearly anything for broken files
        file.raise_error()
        # FFmpeg also reports a lack of memory where a damaged header asks for absurdly much of it
        if isinstance(error, MemoryError) and not isinstance(error, av.error.FFmpegError):
            raise system_error(error, f"{file.name} cannot be read") or error from error
        actual = detect_format(signature)
        reason = f"is {actual}, which has no sound" if actual else "is no sound of a known format, or damaged"
        raise PromptError(f"{file.name} {reason}; {ADVICE}.") from error
    return resources.enter_context(container)


def find_stream(container: Any, name: str) -> Any:
    """Return the sound track that players would choose; raise PromptError if there is none that can be decoded."""
    stream = container.streams.best("audio") if container.streams.audio else None
    if stream is None:
        raise PromptError(f"{name} has no sound track; {ADVICE} with sound in it.")
    if stream.codec_context is None:
        raise PromptError(f"{name} has sound of a codec that is not known here; {ADVICE}.")
    return stream


def stated_duration(container: Any, stream: Any) -> float | None:
    """Return the seconds that a container states for a track or for itself, None if it states none."""
    if stream.duration is not None and stream.time_base is not None:
        seconds = float(stream.duration * stream.time_base)
    else:
        seconds = (container.duration or 0) / 1_000_000  # microseconds
    return seconds if seconds > 0 else None


def promised_duration(container: Any, stream: Any) -> float:
    """Return the seconds of sound that a header counts, 0 if it only estimates them or means other tracks."""
    is_exact = bool(set(container.format.name.split(",")) & set(EXACT_DURATIONS))
    is_alone = stream.duration is not None or len(container.streams) == 1
    return (stated_duration(container, stream) or 0.0) if is_exact and is_alone else 0.0


def decode(container: Any, stream: Any, file: SoundBytes, block_seconds: float) -> Pieces:
    """Yield the samples of a track in pieces of about `block_seconds`.

    Raises:
        PromptError: A packet is damaged and sound follows it, or the file ends long before its header says.
    """
    from av.error import FFmpegError

    frames: list[NDArray[Any]] = []
    kind: tuple[int, int, np.dtype[Any]] | None = None  # rate, channels and dtype of `frames`
    num_samples, seconds = 0, 0.0
    for frame in decode_frames(container, stream, file):
        if not RATES[0] <= frame.sample_rate <= RATES[1]:
            raise PromptError(f"{file.name} is at {frame.sample_rate} Hz; it must be at {RATES[0]} to {RATES[1]}.")
        channels = frame.layout.nb_channels
        if channels > MAX_CHANNELS:
            raise PromptError(f"{file.name} has {channels} channels; {MAX_CHANNELS} are the most.")
        try:
            samples = frame_samples(frame, channels)
        except (ValueError, FFmpegError) as error:
            raise PromptError(
                f"{file.name} has {channels} channels of {frame.format.name}, which cannot be read; {ADVICE}."
            ) from error
        frame_kind = frame.sample_rate, channels, samples.dtype
        if kind is not None and (frame_kind != kind or num_samples >= block_seconds * kind[0]):
            yield np.concatenate(frames, axis=1), kind[0]
            frames, num_samples = [], 0
        kind = frame_kind
        frames.append(samples)
        num_samples += samples.shape[1]
        seconds += samples.shape[1] / frame.sample_rate
    if kind is None:
        raise PromptError(f"{file.name} has a sound track without sound, or it is damaged; {ADVICE}.")
    yield np.concatenate(frames, axis=1), kind[0]
    promised = promised_duration(container, stream) if file.is_seekable else 0.0  # headers in pipes are guesses
    if seconds < promised - MISSING_SECONDS:
        raise PromptError(f"{file.name} is cut off at second {seconds:.1f} of {promised:.1f}; {ADVICE}.")


def decode_frames(container: Any, stream: Any, file: SoundBytes) -> Iterator[Any]:
    """Yield the PyAV frames of a track; raise PromptError where it is broken.

    What cannot be decoded before the first sound and after the last is no damage: tags, padding, half a frame.
    """
    from av.error import FFmpegError

    seconds, broken_at = 0.0, -1.0
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
        except FFmpegError as error:
            file.raise_error()
            raise damage_error(file.name, seconds) from error
        file.raise_error()
        if packet is None:
            return
        try:
            frames = packet.decode()
        except FFmpegError:
            broken_at = seconds if broken_at < 0 < seconds else broken_at
            continue
        for frame in frames:
            if broken_at >= 0:
                raise damage_error(file.name, broken_at)
            seconds += frame.samples / frame.sample_rate
            yield frame


def frame_samples(frame: Any, channels: int) -> NDArray[Any]:
    """Return the samples of a PyAV frame, `[channels, S]` of its own dtype."""
    if frame.format.is_planar and channels < MAX_PLANES:
        planes: NDArray[Any] = frame.to_ndarray()
        return planes
    packed = [frame]
    if frame.format.is_planar:
        from av import AudioResampler

        packed = AudioResampler(format=frame.format.packed).resample(frame)
    return np.concatenate([part.to_ndarray().reshape(-1, channels).T for part in packed], axis=1)


def damage_error(name: str, seconds: float) -> PromptError:
    """Return the error for a file that is broken at this second."""
    return PromptError(f"{name} is broken at second {seconds:.1f}; {ADVICE}.")


def check_array(source: tuple[Any, ...]) -> tuple[NDArray[Any], int]:
    """Return samples `[channels, S]` and rate of (samples, rate); raise PromptError for anything else."""
    try:
        values, rate = source
        samples, rate = np.asarray(values), int(rate)
    except (TypeError, ValueError, RuntimeError, MemoryError, OverflowError) as error:
        raise system_error(error, "the sound cannot be read") or PromptError(
            "the sound is no recording; give a file's path, its bytes, an open file, or (samples, rate)."
        ) from error
    if samples.dtype.kind not in "fiu" or samples.ndim not in (1, 2):
        raise PromptError("the sound is no recording; samples must be numbers, [S] or [S, channels].")
    if not RATES[0] <= rate <= RATES[1]:
        raise PromptError(f"the sound is at {rate} Hz; it must be at {RATES[0]} to {RATES[1]}.")
    if not samples.size:
        raise PromptError("the sound has no samples; give a recording.")
    samples = samples.reshape(len(samples), -1).T
    if len(samples) > MAX_CHANNELS:
        raise PromptError(
            f"the sound has {len(samples):,} channels, {MAX_CHANNELS} are the most; samples must be [S, channels]."
        )
    return samples, rate


def slice_array(samples: NDArray[Any], rate: int, block_seconds: float) -> Pieces:
    """Yield samples `[channels, S]` in pieces of `block_seconds`."""
    size = max(1, int(block_seconds * rate))
    for start in range(0, samples.shape[1], size):
        yield samples[:, start : start + size], rate


def convert_pieces(
    pieces: Pieces, name: str, max_seconds: float, sample_rate: int = SAMPLE_RATE
) -> Iterator[NDArray[np.float32]]:
    """Yield pieces as mono blocks at a rate; raise PromptError once they are longer than `max_seconds`."""
    resampler: tuple[int, Resampler] | None = None
    seconds = 0.0
    for samples, rate in pieces:
        if resampler is None or resampler[0] != rate:
            if resampler is not None and (block := resampler[1].finish()).size:
                yield block
            resampler = rate, Resampler(rate, sample_rate)
        mono = mix_to_mono(samples)
        if not np.abs(mono).max(initial=0.0) <= MAX_SAMPLE:  # true for nan
            raise PromptError(f"{name} has samples that are no numbers after second {seconds:.1f}; {ADVICE}.")
        seconds += len(mono) / rate
        if seconds > max_seconds:
            raise PromptError(f"{name} lasts longer than {max_seconds:g} s, the most; give a shorter recording.")
        if (block := resampler[1].push(mono)).size:
            yield block
    if resampler is not None and (block := resampler[1].finish()).size:
        yield block


def mix_to_mono(samples: NDArray[Any]) -> NDArray[np.float32]:
    """Return the mean of channels as float32 `[S]`, where full scale is 1.

    Args:
        samples (NDArray): [channels, S]; signed integers are scaled by their range, unsigned ones centred too.
    """
    with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinite, which the caller refuses
        mono = samples[0].astype(np.float32)
        for channel in samples[1:]:
            mono += channel.astype(np.float32)
    if len(samples) > 1:
        mono /= np.float32(len(samples))
    if samples.dtype.kind == "f":
        return mono
    half = np.float32(2.0 ** (8 * samples.dtype.itemsize - 1))
    return (mono - half) / half if samples.dtype.kind == "u" else mono / half
