"""Sentence segmentation: texts are split at the ends of sentences and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.modalities.speech.text.plain import to_plain
from polydraft.modalities.speech.text.reading import normalise_text
from polydraft.modalities.speech.text.segmentation import split_sentences
from polydraft.modalities.speech.text.splitting import read_as_written

# One text per line, with ¦ at every cut.
CUTS = (Path(__file__).parent / "sentence_cuts.txt").read_text("utf-8").splitlines()


def text_and_sentences(line: str) -> tuple[str, list[str]]:
    """Return the text of a line, and its sentences."""
    line = line.replace("\\n", "\n")
    blank = "" if any("\u3000" <= c < "\uff00" for c in line) else " "  # Chinese and Japanese have no blanks
    sentences = [part for paragraph in line.split("\n\n") for part in paragraph.split(" ¦ ")]
    return line.replace(" ¦ ", blank), [" ".join(sentence.split()) for sentence in sentences]


def test_split_sentences_cuts_only_where_a_sentence_ends() -> None:
    assert len(CUTS) >= 60
    cases = dict(map(text_and_sentences, CUTS))
    results = {
        text: [s for paragraph in to_plain(text).paragraphs for s in split_sentences(paragraph)] for text in cases
    }
    assert results == cases


def test_read_as_written_returns_whole_sentences() -> None:
    cases = dict(map(text_and_sentences, CUTS))
    assert {text: read_as_written(text).sentences for text in cases} == cases


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("The U.S. economy grew. He left.", ["the u s economy grew .", "he left ."]),
        ("We met at 5 p.m. on Monday.", ["we met at five p m on monday ."]),
        ("See Fig. 3 for it. Smith & Co. left.", ["see figure three for it .", "smith and company left ."]),
    ],
)
def test_normalise_text_splits_at_same_sentence_ends(text: str, sentences: list[str]) -> None:
    assert [" ".join(sentence) for sentence in normalise_text(text).undivided_sentences] == sentences


@settings(max_examples=150)
@given(st.text("aA.!?… \"'”“()[]」「。\n\t\u0085\u00a0\u2028é1😀*_<>&;`", max_size=60))
def test_split_sentences_keeps_every_letter(text: str) -> None:
    for paragraph in to_plain(f"x{text}").paragraphs:
        joined = "".join(split_sentences(paragraph))
        assert [c for c in joined if c.isalnum()] == [c for c in paragraph if c.isalnum()]
