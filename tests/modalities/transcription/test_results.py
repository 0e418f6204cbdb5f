"""Transcriptions as files: exact forms, and texts of every kind read back by FFmpeg, csv, json and OpenAI's client."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from polydraft.core.errors import InvalidArgument, OutputUnwritable
from polydraft.core.stats import DecodeStats
from polydraft.modalities.transcription import formats
from polydraft.modalities.transcription.result import FORMATS, Segment, Transcription, Word, check_output

av: Any = pytest.importorskip("av", reason="FFmpeg reads subtitles here")


def segment(start: float, end: float, text: str, words: tuple[Word, ...] = ()) -> Segment:
    return Segment(start, end, text, (50_364, 7, 50_414), 0.2, -0.25, 1.5, 0.125, words, 300)


def spaced_words(text: str, start: float = 0.0) -> tuple[Word, ...]:
    """Return words of half a second each."""
    return tuple(
        Word(start + index / 2, start + index / 2 + 0.5, " " + word, 0.75) for index, word in enumerate(text.split())
    )


def transcription(*segments: Segment) -> Transcription:
    text = "".join(each.text for each in segments).strip()
    return Transcription(text, segments, "en", 3661.5, DecodeStats("plain", "identical"), "whisper-base", "plain")


SPOKEN = transcription(
    segment(0.0, 1.2346, " Ünder <b>&\nover -->"),
    segment(61.5, 61.5, " "),
    segment(3599.9996, 3602.0, " one two three four", spaced_words("one two three four", 3600)),
)
# lines of 8 characters, two a cue where words have times
EXACT = {
    ".txt": "Ünder <b>& over -->\none two three four\n",
    ".tsv": "start\tend\ttext\n0\t1235\tÜnder <b>& over -->\n61500\t61500\t\n3600000\t3602000\tone two three four\n",
    ".srt": """1
00:00:00,000 --> 00:00:01,235
Ünder
<b>&
over ->

2
01:00:00,000 --> 01:00:01,500
one two
three

3
01:00:01,500 --> 01:00:02,000
four
""",
    ".vtt": """WEBVTT

00:00.000 --> 00:01.235
Ünder
&lt;b&gt;&amp;
over --&gt;

01:00:00.000 --> 01:00:01.500
one two
three

01:00:01.500 --> 01:00:02.000
four
""",
}


@pytest.mark.parametrize("suffix", sorted(EXACT))
def test_saved_file_has_the_exact_form(suffix, tmp_path):
    path = tmp_path / f"spoken{suffix.upper()}"
    assert SPOKEN.save(path, max_line_width=8, max_line_count=2) == path
    assert path.read_bytes().decode() == EXACT[suffix]
    assert list(tmp_path.iterdir()) == [path], "no temporary file is left"


def test_saved_json_is_what_openai_clients_read(tmp_path):
    verbose = pytest.importorskip("openai.types.audio").TranscriptionVerbose
    text = SPOKEN.save(tmp_path / "spoken.json").read_text("utf-8")
    assert json.loads(text) == SPOKEN.to_dict() and "Ünder" in text
    found = verbose.model_validate_json(text, strict=True)
    assert (found.text, found.language, found.duration) == (SPOKEN.text, "en", 3661.5)
    assert not found.model_extra.keys() - {"task"}, "it names nothing else"
    assert not any(each.model_extra for each in found.segments)
    first = found.segments[0].model_dump()
    assert first == {
        "id": 0, "seek": 300, "start": 0.0, "end": 1.2346, "text": " Ünder <b>&\nover -->",
        "tokens": [50_364, 7, 50_414], "temperature": 0.2, "avg_logprob": -0.25,
        "compression_ratio": 1.5, "no_speech_prob": 0.125,
    }  # fmt: skip
    assert [each.id for each in found.segments] == [0, 1, 2]
    assert [(each.word, each.start, each.end) for each in found.words][:2] == [
        ("one", 3600.0, 3600.5), ("two", 3600.5, 3601.0)
    ]  # fmt: skip
    assert "words" not in transcription(segment(0, 1, "a")).to_dict(), "times of words were not asked for"


def test_files_that_cannot_be_written_are_refused(tmp_path):
    for name, message in (
        ("spoken.doc", ".txt, .json, .srt, .vtt, .tsv"),
        ("missing/spoken.srt", "folder that exists"),
    ):
        with pytest.raises(OutputUnwritable, match=message):
            SPOKEN.save(tmp_path / name)
    for limits in ({"max_line_width": 0}, {"max_line_count": -1}, {"max_line_width": "8"}):
        with pytest.raises(InvalidArgument, match=next(iter(limits))):
            SPOKEN.save(tmp_path / "spoken.srt", **limits)
    assert not list(tmp_path.iterdir())
    assert [check_output(tmp_path / f"spoken{suffix}").suffix for suffix in FORMATS] == list(FORMATS)


# texts with all that a format gives a meaning to, and line breaks of every script
pieces_of_text = some.sampled_from(
    ["a", "bc", "def", " ", "  ", "\n", "\r\n", "\n\n", "\t", "\u2028", "\x85", "\x1c", "\0", "-->", "--->", "-", ">",
     "<", "<b>", "&", "&amp;", "2", "字", "é", "{", "}", "\\N", "00:00:01,000 --> 00:00:02,000", "WEBVTT", "NOTE"]
)  # fmt: skip
texts = some.lists(pieces_of_text, max_size=8).map("".join)
times = some.floats(0, 400_000) | some.integers(0, 40).map(lambda tenths: tenths / 10)


@some.composite
def spoken_segments(draw) -> list[Segment]:
    """Build segments, whose words, where they have any, are mostly their text."""
    found = []
    for _ in range(draw(some.integers(0, 4))):
        word_texts = draw(some.lists(texts, max_size=6))
        start, end = draw(times), draw(times)
        words = tuple(Word(draw(times), draw(times), each, 0.5) for each in word_texts)
        text = draw(texts) if draw(some.integers(0, 4)) == 0 else "".join(word_texts)
        found.append(segment(start, end, text, words if draw(some.booleans()) else ()))
    return found


def squeezed(text: str) -> str:
    """Return the text without spaces and line breaks."""
    return "".join(text.replace("\0", "\ufffd").split())


def read_subtitles(kind: str, text: str) -> list[tuple[int, int, str]]:
    """Return start and end in milliseconds and the text of the cues that FFmpeg finds."""
    with av.open(io.BytesIO(text.encode()), format=kind) as container:
        packets = [packet for packet in container.demux() if packet.pts is not None]
    return [(packet.pts, packet.pts + packet.duration, bytes(packet).decode()) for packet in packets]


@settings(max_examples=200, deadline=None)
@given(spoken_segments(), some.none() | some.integers(1, 12), some.none() | some.integers(1, 3))
def test_subtitles_read_back_hold_every_text_once(segments, width, count):
    cues = formats.make_cues(segments, width, count)
    srt, vtt = formats.to_srt(segments, width, count), formats.to_vtt(segments, width, count)
    assert squeezed("".join(line for cue in cues for line in cue.lines)) == squeezed(
        "".join(each.text for each in segments)
    )
    for cue in cues:
        assert all(line == line.strip() != "" and "\n" not in line for line in cue.lines)
    assert "\r" not in srt + vtt and vtt.count("-->") == len(cues)
    if not cues:
        assert (srt, vtt) == ("", "WEBVTT\n")
        return
    for kind, text, least in (("srt", srt, 0), ("webvtt", vtt, 1)):
        found = {(start, end, squeezed(shown)) for start, end, shown in read_subtitles(kind, text)}
        if kind == "webvtt":
            found = {(start, end, html.unescape(shown)) for start, end, shown in found}
        wanted = set()  # FFmpeg drops cues of equal text and times
        for cue in cues:
            lines = [re.sub("-+->", "->", line) if kind == "srt" else line for line in cue.lines]
            wanted.add((*formats.to_milliseconds(cue.start, cue.end, least), squeezed("".join(lines))))
        assert found == wanted, kind
        assert all(start + least <= end for start, end, _ in found)
    numbers = [int(block.split("\n")[0]) for block in srt.rstrip("\n").split("\n\n")]
    assert numbers == list(range(1, len(cues) + 1))


@settings(max_examples=200)
@given(some.lists(some.text("ab字é", min_size=1, max_size=9), min_size=1, max_size=12), some.integers(1, 12),
       some.none() | some.integers(1, 3), some.booleans())  # fmt: skip
def test_cues_keep_to_width_and_number_of_lines(word_texts, width, count, has_times):
    text = " " + " ".join(word_texts)
    words = spaced_words(text, 10.0)
    (*cues,) = formats.make_cues([segment(10, 10 + len(words) / 2, text, words if has_times else ())], width, count)
    lines = [line for cue in cues for line in cue.lines]
    assert " ".join(lines) == text.strip()
    assert all(len(line) <= width or line in word_texts for line in lines)
    for line, after in zip(lines, lines[1:], strict=False):
        assert len(line) + 1 + len(after.split()[0]) > width, "a line is as long as it may be"
    if not has_times or count is None:
        assert len(cues) == 1
        return
    assert all(len(cue.lines) == count for cue in cues[:-1]) and 1 <= len(cues[-1].lines) <= count
    index = 0
    for cue in cues:
        number = sum(len(line.split()) for line in cue.lines)
        assert (cue.start, cue.end) == (words[index].start, words[index + number - 1].end)
        index += number


def test_cues_of_blank_or_other_words_keep_spaces():
    parts = tuple(Word(index, index + 1, each, 0.5) for index, each in enumerate(["", "a", " ", "b", "c", " "]))
    (cue,) = formats.make_cues([segment(0, 6, "a bc ", parts)], 4, 2)
    assert cue.lines == ("a bc",)
    (cue,) = formats.make_cues([segment(0, 6, "not these words", parts)], 5, 1)
    assert (cue.start, cue.end, cue.lines) == (0, 6, ("not", "these", "words"))


@given(spoken_segments())
def test_tables_and_texts_hold_every_segment(segments):
    rows = list(csv.reader(io.StringIO(formats.to_tsv(segments), newline="\n"), delimiter="\t", quoting=csv.QUOTE_NONE))
    assert rows[0] == ["start", "end", "text"]
    for row, each in zip(rows[1:], segments, strict=True):
        assert squeezed(row[2]) == squeezed(each.text)
        assert [int(row[0]), int(row[1])] == [round(each.start * 1000), round(max(each.start, each.end) * 1000)]
    lines = formats.to_txt(segments).split("\n")
    assert lines.pop() == ""
    assert list(map(squeezed, lines)) == [squeezed(each.text) for each in segments if squeezed(each.text)]


def test_transcription_words_are_those_of_all_segments():
    assert [word.text for word in SPOKEN.words] == [" one", " two", " three", " four"]
    late = replace(SPOKEN.segments[0], start=2.0)  # after its end
    assert transcription(late).to_dict()["segments"][0]["end"] == 2.0
