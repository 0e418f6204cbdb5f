"""Result of speech synthesis: audio, tokens, statistics, and the pass that committed every token."""

from __future__ import annotations

import html
import struct
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polydraft.core.errors import OutputUnwritable
from polydraft.core.folders.atomic_files import atomic_file
from polydraft.core.stats import DecodeStats
from polydraft.modalities.output import check_writable, format_result

FORMATS = {".wav": ("WAV", "PCM_16"), ".flac": ("FLAC", "PCM_16"), ".mp3": ("MP3", "MPEG_LAYER_III"),
           ".opus": ("OGG", "OPUS"), ".ogg": ("OGG", "VORBIS"), ".pcm": ("RAW", "PCM_16")}  # fmt: skip
UNKNOWN_SIZE = 0xFFFFFFFF  # size field in the header of a WAV of unknown length
ENDIAN = {"RAW": "LITTLE"}  # the other formats have a fixed byte order


@dataclass(frozen=True)
class SpeechResult:
    """Audio, tokens and statistics of one synthesised text."""

    audio: NDArray[np.float32]  # [samples] in -1..1
    sample_rate: int
    tokens: Tensor  # [T] int64 codes of all sentences, concatenated
    passes: Tensor  # [T] int64 target pass that committed each code, from 1
    stats: DecodeStats
    finish_reason: str  # "eos"; "length" or "loop" if a sentence was cut, "cancelled" if synthesis was stopped
    ignored_words: tuple[str, ...]  # unpronounceable parts of the text, as written
    text: str
    sentences: list[str]  # synthesised sentences, in the model's words
    counts: list[int]  # codes of each sentence
    voice: str
    seed: int
    model: str
    method: str
    silent: str = ""  # reason why there are tokens but no audio; empty if there is audio
    decoded: list[list[int]] = field(default_factory=list)  # all tokens of each sentence, its end included
    notes: tuple[str, ...] = ()  # for the user, such as a voice that the model does not list

    def __repr__(self) -> str:
        """Return one line with the length of the audio and the statistics."""
        content = f"{self.seconds:.2f} s at {self.sample_rate} Hz, voice {self.voice!r}"
        return format_result(type(self).__name__, content, self.model, self.stats, self.finish_reason)

    def _repr_html_(self) -> str | None:
        """Return an audio player with the text below it, which notebooks show; None where there is no audio."""
        if self.silent or not len(self.audio):
            return None
        pcm = to_pcm16(self.audio)
        source = b64encode(wav_header(self.sample_rate, len(pcm)) + pcm).decode()
        return f'<audio controls src="data:audio/wav;base64,{source}"></audio><p>{html.escape(self.text)}</p>'

    def to_dict(self) -> dict[str, Any]:
        """Return settings and statistics as JSON can hold them, without samples and tokens."""
        return {
            "model": self.model, "method": self.method, "voice": self.voice, "seed": self.seed, "text": self.text,
            "sentences": self.sentences, "seconds": self.seconds, "sample_rate": self.sample_rate,
            "finish_reason": self.finish_reason, "ignored_words": list(self.ignored_words), "notes": list(self.notes),
            "stats": self.stats.to_dict(),
        }  # fmt: skip

    @property
    def seconds(self) -> float:
        """Return the length of the audio in seconds."""
        return len(self.audio) / self.sample_rate

    def save(self, path: str | Path) -> Path:
        """Write the audio atomically in the format of the file's suffix, with metadata about its generation."""
        if self.silent:
            raise OutputUnwritable(self.silent)
        notes = {
            "title": self.text[:200], "artist": f"polydraft {self.model}, {self.voice}", "software": "polydraft",
            "comment": f"AI-generated speech; method {self.method}, seed {self.seed}",
        }  # fmt: skip
        return write_audio(self.audio, self.sample_rate, check_output(path), notes)


def check_output(path: str | Path) -> Path:
    """Return `path` if audio can be written there; raises OutputUnwritable, and writes nothing."""
    return check_writable(path, FORMATS, "sound")


def write_audio(audio: NDArray[np.float32], sample_rate: int, path: Path, notes: dict[str, Any]) -> Path:
    """Write audio atomically: to a temporary file first, which is then renamed to `path`.

    Args:
        audio (NDArray): [samples] in -1..1.
        sample_rate (int): in Hz.
        path (Path): file, whose suffix selects the format.
        notes (dict[str, Any]): metadata, by field of `soundfile.SoundFile`.

    Returns:
        Path: `path`.
    """
    import soundfile

    kind, subtype = FORMATS[path.suffix.lower()]
    with (
        atomic_file(path, soundfile.SoundFileError) as file,
        soundfile.SoundFile(file, "w", sample_rate, 1, subtype, ENDIAN.get(kind), kind) as output,
    ):
        if kind != "RAW":
            for name, value in notes.items():
                setattr(output, name, value)
        output.write(audio)
    return path


def to_pcm16(audio: NDArray[np.float32]) -> bytes:
    """Return the samples as signed 16-bit little-endian integers."""
    return (audio.clip(-1, 1) * 32767).round().astype("<i2").tobytes()


def wav_header(sample_rate: int, size: int | None = None) -> bytes:
    """Return the start of a mono 16-bit WAV.

    Args:
        sample_rate (int): in Hz.
        size (int | None): bytes of its samples; None if the length is unknown.
    """
    data_size = UNKNOWN_SIZE if size is None else min(size, UNKNOWN_SIZE)
    riff_size = min(data_size + 36, UNKNOWN_SIZE)  # bytes after this field
    format_chunk = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", riff_size, b"WAVE") + format_chunk + struct.pack("<4sI", b"data", data_size)
