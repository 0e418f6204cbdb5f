"""Texts with times as files: plain text, JSON, SubRip, WebVTT and tables; pure functions of the segments.

    to_srt(segments, max_line_width=42, max_line_count=2)

Line breaks within a text become spaces, and spaces around it are removed. Cues show the text of one segment; where its
words have times, it may be split into several (`make_cues`). No word is lost, and none is shown twice.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from polydraft.core.checks.arguments import to_integer, to_optional

if TYPE_CHECKING:
    from polydraft.modalities.transcription.committed_text import OpenSegment
    from polydraft.modalities.transcription.result import Segment, Word


@dataclass(frozen=True)
class Cue:
    """Lines that are shown together."""

    start: float  # seconds
    end: float  # seconds
    lines: tuple[str, ...]


def make_cues(
    segments: Sequence[Segment], max_line_width: int | None = None, max_line_count: int | None = None
) -> list[Cue]:
    """Divide the segments into cues, those without text left out.

    Args:
        segments (Sequence[Segment]): in the order of time.
        max_line_width (int | None): characters of a line, which breaks between words; a longer word has a line of its
            own. None puts the text of a segment on one line.
        max_line_count (int | None): lines of a cue; what is left is shown in further cues, at the time of its words. A
            segment whose words have no times stays one cue. None puts all lines of a segment into one cue.

    Raises:
        InvalidArgument: a limit is not a positive integer.
    """
    max_line_width = to_optional(to_integer, "max_line_width", max_line_width, 1)
    max_line_count = to_optional(to_integer, "max_line_count", max_line_count, 1)
    cues = []
    for segment in segments:
        text = join_lines(segment.text)
        words = timed_words(segment)
        pieces = [word.text for word in words] or re.findall(r"\s*\S+", text)
        lines = [[text]] if max_line_width is None else break_lines(pieces, max_line_width)
        if not text:
            continue
        if not words or max_line_width is None or max_line_count is None or len(lines) <= max_line_count:
            cues.append(Cue(segment.start, segment.end, tuple(join_lines("".join(line)) for line in lines)))
            continue
        index = 0  # of the first word of the cue
        for first_line in range(0, len(lines), max_line_count):
            cue_lines = lines[first_line : first_line + max_line_count]
            cue_words = words[index : index + sum(map(len, cue_lines))]
            index += len(cue_words)
            texts = tuple(join_lines("".join(line)) for line in cue_lines)
            cues.append(Cue(cue_words[0].start, cue_words[-1].end, texts))
    return cues


def timed_words(segment: Segment) -> list[Word]:
    """Return the words of a segment, each with a text; none if they are not its text, which is then shown instead."""
    joined = "".join(word.text for word in segment.words)
    if "".join(joined.split()) != "".join(segment.text.split()):
        return []
    words: list[Word] = []
    for word in segment.words:
        if word.text.strip():
            words.append(word)
        elif words:  # spaces alone separate the words around them
            words[-1] = replace(words[-1], text=words[-1].text + word.text)
    return words


def break_lines(pieces: Sequence[str], max_line_width: int) -> list[list[str]]:
    """Fill lines with pieces, which hold the spaces between them, so that each is as long as it may be."""
    lines: list[list[str]] = []
    for piece in pieces:
        if lines and len(join_lines("".join([*lines[-1], piece]))) <= max_line_width:
            lines[-1].append(piece)
        else:
            lines.append([piece])
    return lines


def join_lines(text: str) -> str:
    """Return the text as one line, without spaces around it, and without NUL, at which some players stop reading."""
    return " ".join(text.replace("\0", "\ufffd").splitlines()).strip()


def to_milliseconds(start: float, end: float, least: int = 0) -> tuple[int, int]:
    """Return times in milliseconds, the end at least `least` after the start; nothing begins before the sound does."""
    first, last = (max(0, round(seconds * 1000)) for seconds in (start, end))
    return first, max(last, first + least)


def format_time(milliseconds: int, mark: str, with_hours: bool) -> str:
    """Return a time such as 01:02:03.004, with `mark` for the dot; without `with_hours` only if it has hours."""
    seconds, milliseconds = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{minutes:02d}:{seconds:02d}{mark}{milliseconds:03d}"
    return f"{hours:02d}:{text}" if hours or with_hours else text


def to_txt(segments: Sequence[Segment | OpenSegment]) -> str:
    """Return the text, one segment a line."""
    lines = (join_lines(segment.text) for segment in segments)
    return "".join(f"{line}\n" for line in lines if line)


def to_tsv(segments: Sequence[Segment]) -> str:
    """Return a table of start and end in milliseconds, and text; tabs within a text become spaces."""
    return "start\tend\ttext\n" + "".join(
        "{}\t{}\t{}\n".format(*to_milliseconds(segment.start, segment.end), join_lines(segment.text.replace("\t", " ")))
        for segment in segments
    )


def to_srt(segments: Sequence[Segment], max_line_width: int | None = None, max_line_count: int | None = None) -> str:
    """Return SubRip subtitles, limited as by `make_cues`.

    There is no escape in this format, so an arrow of hyphens in a text is shortened to `->`, as in Whisper's own code.
    """

    def blocks() -> Iterator[str]:
        """Yield the cues as text."""
        for number, cue in enumerate(make_cues(segments, max_line_width, max_line_count), 1):
            start, end = (format_time(time, ",", with_hours=True) for time in to_milliseconds(cue.start, cue.end))
            lines = "\n".join(re.sub("-{2,}>", "->", line) for line in cue.lines)
            yield f"{number}\n{start} --> {end}\n{lines}\n"

    return "\n".join(blocks())


def to_vtt(segments: Sequence[Segment], max_line_width: int | None = None, max_line_count: int | None = None) -> str:
    """Return WebVTT subtitles, limited as by `make_cues`; an end is later than its start, as the standard demands."""

    def blocks() -> Iterator[str]:
        """Yield the head, then the cues as text."""
        yield "WEBVTT\n"
        for cue in make_cues(segments, max_line_width, max_line_count):
            times = to_milliseconds(cue.start, cue.end, least=1)
            start, end = (format_time(time, ".", with_hours=False) for time in times)
            lines = "\n".join(html.escape(line, quote=False) for line in cue.lines)
            yield f"{start} --> {end}\n{lines}\n"

    return "\n".join(blocks())


def to_verbose_json(
    segments: Sequence[Segment], text: str, language: str, duration: float, task: str
) -> dict[str, Any]:
    """Return the object that OpenAI's API answers with as `verbose_json`; it has `words` if any segment has.

    Args:
        segments (Sequence[Segment]): in the order of time.
        text (str): the whole text.
        language (str): of the sound.
        duration (float): seconds of the sound.
        task (str): "transcribe" or "translate".
    """
    answer: dict[str, Any] = {
        "task": task,
        "language": language,
        "duration": duration,
        "text": text,
        "segments": [
            {
                "id": index,
                "seek": segment.seek,
                "start": segment.start,
                "end": max(segment.start, segment.end),
                "text": segment.text,
                "tokens": list(segment.tokens),
                "temperature": segment.temperature,
                "avg_logprob": segment.average_log_prob,
                "compression_ratio": segment.compression_ratio,
                "no_speech_prob": segment.no_speech_prob,
            }
            for index, segment in enumerate(segments)
        ],
    }
    words = [word for segment in segments for word in segment.words]
    if words:
        answer["words"] = [
            {"word": word.text.strip(), "start": word.start, "end": max(word.start, word.end)} for word in words
        ]
    return answer


def to_json(answer: dict[str, Any]) -> str:
    """Return `to_verbose_json` as text, with letters of all scripts as they are."""
    return json.dumps(answer, ensure_ascii=False, indent=2) + "\n"
