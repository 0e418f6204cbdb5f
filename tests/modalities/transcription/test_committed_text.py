"""Text of windows by the passes that committed it."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from polydraft.modalities.transcription.committed_text import CommittedText, OpenSegment, WindowText
from polydraft.modalities.transcription.tokens import ControlTokens

END, FIRST = 256, 258  # ids below are bytes; timestamps follow
TOKENS = ControlTokens(257, END, None, None, FIRST - 1, None, {}, {})


def decode_bytes(ids: Sequence[int]) -> str:
    return bytes(id_ for id_ in ids if id_ < END).decode("utf-8", "replace")


def window_text(*passes: list[int]) -> WindowText:
    """Return the text of a window whose passes, from 3 on, committed these ids."""
    text = WindowText(decode_bytes, END, FIRST)
    for number, ids in enumerate(passes, 3):
        text.push(ids, number)
    return text


def test_timestamps_divide_text_into_segments() -> None:
    text = window_text([FIRST, *b" He"], [*b" was", FIRST + 50, FIRST + 60], [*b" right"])
    assert text.open_segments(30.0) == [
        OpenSegment(30.0, 31.0, (CommittedText(3, 3, " He"), CommittedText(4, 4, " was"))),
        OpenSegment(31.2, None, (CommittedText(5, 6, " right"),)),
    ]
    assert text.runs(0, 9) == (CommittedText(3, 3, " He"), CommittedText(4, 4, " was")) and text.runs(8, 10) == ()
    assert [segment.text for segment in text.open_segments(0.0)] == [" He was", " right"]


def test_divided_characters_belong_to_the_completing_pass() -> None:
    text = window_text([*b"na", 0xC3], [0xAF, *b"ve"], [0xE2])
    assert [run.text for run in text.runs(0, 9)] == ["", "naïve", ""] and text.text == "naïve"
    text.push([END], 6)  # A character that never becomes complete.
    assert text.text == "naïve\N{REPLACEMENT CHARACTER}" == decode_bytes([*"naïve".encode(), 0xE2])


@given(st.text(max_size=20), st.lists(st.integers(1, 4), min_size=30))
def test_runs_joined_are_the_text(written: str, sizes: list[int]) -> None:
    ids, text, position = list(written.encode("utf-8", "replace")), WindowText(decode_bytes, END, FIRST), 0
    for number, size in enumerate(sizes, 1):
        text.push(ids[position : position + size], number)
        position += size
    text.push([*ids[position:], END], len(sizes) + 1)
    assert text.text == decode_bytes(ids) and sum(run.num_tokens for run in text.runs(0, 999)) == len(ids)
