"""Result of speech recognition: text, segments and words with their times, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polydraft.core.stats import DecodeStats
from polydraft.modalities.output import check_writable, format_result, quote_beginning, write_text
from polydraft.modalities.transcription.committed_text import CommittedText
from polydraft.modalities.transcription.formats import to_json, to_srt, to_tsv, to_txt, to_verbose_json, to_vtt

FORMATS = (".txt", ".json", ".srt", ".vtt", ".tsv")


@dataclass(frozen=True)
class Word:
    """Word of a segment with its times."""

    start: float  # seconds from the start of the sound
    end: float  # seconds from the start of the sound
    text: str  # with the space before it, so that the words of a segment joined are its text
    probability: float  # geometric mean over its tokens


@dataclass(frozen=True)
class Segment:
    """Part of a transcription with its times, usually a sentence or a part of one."""

    start: float  # seconds from the start of the sound
    end: float  # seconds from the start of the sound
    text: str
    tokens: tuple[int, ...] = field(repr=False)  # ids, timestamps included
    # of the window of sound that the segment was found in, all its segments together
    temperature: float
    average_log_prob: float
    compression_ratio: float  # of its tokens as bytes; above 2.4 a text usually repeats itself
    no_speech_prob: float  # probability that nothing is spoken
    words: tuple[Word, ...] = ()  # empty if times of words were not asked for
    seek: int = 0  # frame of 10 ms at which the window begins
    # the text by the passes that committed it
    runs: tuple[CommittedText, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Transcription:
    """Text, segments and statistics of one sound."""

    text: str
    segments: Sequence[Segment]  # in the order of time
    language: str  # code such as "en"
    duration: float  # seconds of the sound
    stats: DecodeStats
    model: str
    method: str
    seed: int = 0
    task: str = "transcribe"  # or "translate", into English
    language_probability: float | None = None  # None if the language was given
    notes: tuple[str, ...] = ()  # for the user, such as an option that the model does not have
    finish_reason: str = "eos"  # "cancelled" if it was stopped before the end of the sound

    def __repr__(self) -> str:
        """Return one line with the beginning of the text, the length of the sound and the statistics."""
        extent = f"{self.duration:.1f} s in {self.language!r}, {len(self.segments)} segments"
        content = f"{quote_beginning(self.text)}, {extent}"
        return format_result(type(self).__name__, content, self.model, self.stats, self.finish_reason)

    @property
    def tokens(self) -> Tensor:
        """Return the ids of all segments, `[N]`, timestamps included."""
        return torch.tensor([token for segment in self.segments for token in segment.tokens], dtype=torch.long)

    @property
    def decoded(self) -> list[list[int]]:
        """Return the ids of all segments as one row, as results of other modalities have their tokens."""
        return [self.tokens.tolist()]

    @property
    def words(self) -> list[Word]:
        """Return the words of all segments; empty if times of words were not asked for."""
        return [word for segment in self.segments for word in segment.words]

    def to_dict(self) -> dict[str, Any]:
        """Return the transcription as JSON can hold it, in the form of OpenAI's `verbose_json`."""
        return to_verbose_json(self.segments, self.text, self.language, self.duration, self.task)

    def render(self, suffix: str, *, max_line_width: int | None = None, max_line_count: int | None = None) -> str:
        """Return the content of a file.

        Args:
            suffix (str): one of `FORMATS`.
            max_line_width (int | None): characters of a line of subtitles (`formats.make_cues`).
            max_line_count (int | None): lines of a subtitle (`formats.make_cues`).

        Raises:
            InvalidArgument: a limit is not a positive integer.
        """
        if suffix == ".json":
            return to_json(self.to_dict())
        if suffix in (".srt", ".vtt"):
            return (to_srt if suffix == ".srt" else to_vtt)(self.segments, max_line_width, max_line_count)
        return (to_tsv if suffix == ".tsv" else to_txt)(self.segments)

    def save(self, path: str | Path, *, max_line_width: int | None = None, max_line_count: int | None = None) -> Path:
        """Write the transcription atomically in the format of the file's suffix, one of `FORMATS`, and return the path.

        Args:
            path (str | Path): the file.
            max_line_width (int | None): characters of a line of subtitles (`formats.make_cues`).
            max_line_count (int | None): lines of a subtitle (`formats.make_cues`).

        Raises:
            OutputUnwritable: the suffix is of no format, or the file cannot be written.
            InvalidArgument: a limit is not a positive integer.
        """
        path = check_output(path)
        content = self.render(path.suffix.lower(), max_line_width=max_line_width, max_line_count=max_line_count)
        write_text(path, content)
        return path


def check_output(path: str | Path) -> Path:
    """Return `path` if a transcription can be written there; raises OutputUnwritable, and writes nothing."""
    return check_writable(path, FORMATS, "transcription")
