"""Text normalisation: written forms are read as listed, and only pronounceable words are returned."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.core.errors import PromptError
from polydraft.modalities.speech.text.cutting import LONGEST_PART, MOST_WORDS
from polydraft.modalities.speech.text.lexicon import PUNCTUATION, pronounce
from polydraft.modalities.speech.text.plain import LONGEST_TEXT
from polydraft.modalities.speech.text.reading import normalise_text
from polydraft.modalities.speech.text.splitting import read_as_written

FORMS = (Path(__file__).parent / "written_forms.txt").read_text("utf-8")  # written => read => ignored


def parse_forms(table: str) -> dict[str, tuple[str, str]]:
    """Return the reading of every written form of a section, and its ignored content."""
    rows = [line.split(" => ") for line in table.splitlines() if " => " in line]
    return {row[0].replace("\\n", "\n"): (row[1], "".join(row[2:])) for row in rows}


SECTIONS = {section.partition(" ==")[0]: parse_forms(section) for section in FORMS.split("\n== ")}
READ = [text for forms in SECTIONS.values() for text in forms]


@pytest.mark.parametrize("section", SECTIONS)
def test_normalise_text_reads_written_forms_as_listed(section: str) -> None:
    readings = {text: normalise_text(text) for text in SECTIONS[section]}
    results = {
        text: (" / ".join(" ".join(sentence) for sentence in reading.sentences), " ¦ ".join(reading.ignored))
        for text, reading in readings.items()
    }
    assert results == SECTIONS[section]


def test_written_forms_are_many() -> None:
    assert len(READ) > 350


def test_normalise_text_has_no_fewer_sentences() -> None:
    for text in READ:
        written = read_as_written(text).sentences
        # There may be more, since a question in quotes is a sentence of its own.
        assert len(normalise_text(text).undivided_sentences) >= len(written), text


def test_normalise_text_abbreviation_may_end_sentence() -> None:
    assert len(normalise_text("We met at 5 p.m. He left.").sentences) == 2
    assert len(normalise_text("Acme Inc. He left.").sentences) == 2
    assert len(normalise_text("I met Dr. Brown. He left.").sentences) == 2


def test_normalise_text_unit_dot_before_title_ends_sentence() -> None:
    first, second = normalise_text("The tree grew by 4.8 m. Prof. Okafor was born in 1950.").sentences
    assert first[-2:] == ["meters", "."] and second[:2] == ["professor", "okafor"]


def test_normalise_text_reports_unpronounceable_parts() -> None:
    reading = normalise_text("привет hello 日本 there 😀, привет")
    assert reading.sentences == [["hello", "there", "."]] or reading.sentences == [["hello", "there", ",", "."]]
    assert reading.ignored == ("привет", "日本", "😀")
    assert normalise_text("plain words, £5 and 20°").ignored == ()


@pytest.mark.parametrize("text", ["", "  \n", "?!", "😀 🎉", "привет", "日本語", "—"])
def test_normalise_text_without_words_is_refused(text: str) -> None:
    with pytest.raises(PromptError, match="(empty|nothing).*; give .*"):
        normalise_text(text)


def test_normalise_text_too_long_is_refused() -> None:
    assert normalise_text("word " * (LONGEST_TEXT // 5)).sentences
    with pytest.raises(PromptError, match=f"{LONGEST_TEXT + 1} characters; use at most {LONGEST_TEXT}"):
        normalise_text("w" * (LONGEST_TEXT + 1))


def test_long_sentences_are_cut_at_commas_then_conjunctions() -> None:
    clause = "the quick brown fox jumped over nine lazy dogs near a river"
    at_commas = normalise_text(", ".join([clause] * 12)).sentences
    assert len(at_commas) > 1
    assert all(part[:3] == ["the", "quick", "brown"] and part[-1] in ",." for part in at_commas)
    at_ands = normalise_text(" and ".join([clause] * 12)).sentences
    assert all(part[:2] == ["and", "the"] for part in at_ands[1:])


@settings(max_examples=200)
@given(st.text(max_size=300))
def test_normalise_text_any_text_is_valid_or_refused(text: str) -> None:
    try:
        reading = normalise_text(text)
    except PromptError:
        return
    assert reading.sentences
    for sentence in reading.sentences:
        assert_valid_sentence(sentence)


@settings(max_examples=300)
@given(st.text("0123456789.,:/-$%° apmsthSt'", min_size=1, max_size=40))
def test_normalise_text_any_digits_are_valid_or_refused(text: str) -> None:
    try:
        sentences = normalise_text(text).sentences
    except PromptError:
        return
    for sentence in sentences:
        assert_valid_sentence(sentence)


@settings(max_examples=50)
@given(
    st.lists(
        st.sampled_from(["river", "and", "window,", "yesterday", "because", "a", "zebra,"]), min_size=1, max_size=200
    )
)
def test_normalise_text_division_loses_no_word(words: list[str]) -> None:
    sentences = normalise_text(" ".join(words)).sentences
    kept = [word for sentence in sentences for word in sentence if word not in PUNCTUATION]
    assert kept == [word.rstrip(",") for word in words]
    for sentence in sentences:
        assert_valid_sentence(sentence)


# a block of code is one only at the beginning of a line
PIECES = [text.rstrip(".") for text in READ if re.search("[A-Za-z0-9]", text) and "```" not in text]
SEPARATOR = "  (word)  "  # between pieces, so that each is read separately


@settings(max_examples=60)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=5))
def test_normalise_text_drops_no_common_form(pieces: list[str]) -> None:
    spoken = " ".join(word for part in normalise_text(SEPARATOR.join(["", *pieces, ""])).sentences for word in part)
    between = [re.sub("[^a-z]", "", text) for text in re.split(r"\bword\b", spoken)]
    assert len(between) == len(pieces) + 2 and all(between[1:-1]), spoken


@settings(max_examples=150)
@given(st.text([chr(code) for code in range(32, 127)], min_size=1, max_size=12))
def test_normalise_text_drops_no_letters_or_digits(chunk: str) -> None:
    """Check that text between two words yields words if it has a letter or a digit."""
    reading = normalise_text(f"zebra {chunk} zebra")
    spoken = " ".join(word for part in reading.sentences for word in part)
    inside = spoken.removeprefix("zebra").rpartition("zebra")[0]
    assert bool(re.search("[a-z]", inside)) >= bool(re.search("[A-Za-z0-9]", chunk)), (chunk, spoken)


def assert_valid_sentence(sentence: list[str]) -> None:
    """Check that a sentence has words of letters, no adjacent marks, a final mark, and limited length."""
    words = [word for word in sentence if word not in PUNCTUATION]
    assert words and sentence[0] in words and sentence[-1] in PUNCTUATION
    assert all(re.fullmatch("[a-z]+('[a-z]+)*", word) for word in words)
    assert not any(a in PUNCTUATION and b in PUNCTUATION for a, b in zip(sentence, sentence[1:], strict=False))
    assert len(words) <= MOST_WORDS and len(" ".join(sentence)) <= LONGEST_PART + len(sentence)


def test_normalised_words_are_in_the_lexicon() -> None:
    unknown = {
        word
        for text in READ
        for sentence in normalise_text(text).sentences
        for word in sentence
        if word not in PUNCTUATION and pronounce(word) is None
    }
    assert unknown == {"obrien", "covid", "localhost", "usr", "org", "megabits"}


@pytest.mark.parametrize("piece", ["1", "a", "-", "1-", "111,", "a.", "St. ", "$1", "3:45", "@", "A", "+1 1 "])
def test_normalise_text_long_input_is_fast(piece: str) -> None:
    start = time.process_time()
    try:
        normalise_text((piece * LONGEST_TEXT)[:LONGEST_TEXT])
    except PromptError:
        assert piece == "-"
    assert time.process_time() - start < 10
