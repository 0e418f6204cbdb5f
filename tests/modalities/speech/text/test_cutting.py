"""Division of long sentences: no word is lost, units of meaning stay whole, and marks are those of the text."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polydraft.modalities.speech.text.cutting import LONGEST_PART, MOST_WORDS, cut_cost, divide_sentence
from polydraft.modalities.speech.text.lexicon import PUNCTUATION
from polydraft.modalities.speech.text.reading import normalise_text

BEFORE = "The committee had met every single week since the early spring of that year and "
AFTER = " while everybody else who lived in the little town by the river was still waiting for an answer."
WHOLE = {  # units of meaning that are never cut, as written and as read
    "May 6th, 2024": "may sixth , twenty twenty four",
    "the 21st of November 2026": "the twenty first of november , twenty twenty six",
    "$1,234.56": "one thousand two hundred thirty four dollars and fifty six cents",
    "3:45 p.m.": "three forty five p m",
    "555-1234": "five five five , one two three four",
    "12.5 km": "twelve point five kilometers",
    "Dr. Maria Gonzalez": "doctor maria gonzalez",
    "Mr. and Mrs. Smith": "and missus smith",
    "me@example.com": "me at example dot com",
    "the FBI": "the f b i",
    "between 9 a.m. and 5 p.m.": "nine ay m and five p m",
    "2 1/2 cups": "two and one half cups",
    "Chapter 12": "chapter twelve",
}

PIECES = [
    "river", "and", "window,", "yesterday", "because", "a", "May", "7", "$5", "Smith", "Dr.", "FBI", "zebra,",
]  # fmt: skip


@pytest.mark.parametrize("gap", ["", "in fact ", "as far as we know today ", "as most of us had already heard by now "])
@pytest.mark.parametrize(("written", "spoken"), WHOLE.items())
def test_divide_sentence_keeps_units_of_meaning_whole(written: str, spoken: str, gap: str) -> None:
    reading = normalise_text(f"{BEFORE}{gap}they chose {written}{AFTER}")
    assert len(reading.sentences) > 1
    assert any(spoken in " ".join(part) for part in reading.sentences), reading.sentences


def test_divide_sentence_cuts_at_natural_pauses() -> None:
    reading = normalise_text(
        "When Professor Maria Gonzalez arrived at the hotel on the corner of Main St. and Fifth Avenue, she found that "
        "nobody had kept her room and that the manager, Mr. John Smith, had gone home."
    )
    assert [part[0] for part in reading.sentences] == ["when", "she"] and reading.marks == (",", ".")
    reading = normalise_text("Well, yes, " + "we can always come back to the house by the sea " * 3)
    assert reading.sentences[0][:5] == ["well", ",", "yes", ",", "we"]  # no part is two words long
    assert all(len(part) > 5 for part in reading.sentences)


def test_cut_cost_is_least_before_conjunction() -> None:
    words = ["we", "read", "a", "long", "book", "about", "nothing", "in", "the", "house", "and", "others", "sleep"]
    costs = {words[index]: cut_cost(words, index) for index in range(2, len(words))}
    assert min(costs, key=lambda word: costs[word]) == "and"
    assert costs["book"] > costs["in"] > costs["and"] and costs["others"] > costs["sleep"] > costs["in"]
    with_comma = [*words[:5], ",", *words[5:]]
    assert cut_cost(with_comma, 6) < cut_cost(words, 5) and cut_cost(with_comma, 5) == float("inf")


def test_marks_are_those_of_the_text() -> None:
    clause = "the quick brown fox jumped over nine lazy dogs near a river"
    reading = normalise_text(f"{clause} and {clause}, {clause}! Was it?")
    assert reading.marks == ("", ",", "!", "?") and all(part[-1] in PUNCTUATION for part in reading.sentences)
    assert reading.undivided_sentences == [f"{clause} and {clause} , {clause} !".split(), ["was", "it", "?"]]


def test_divide_sentence_short_sentence_is_one_part() -> None:
    assert divide_sentence(["Yes", ",", "I", "do", "."]) == [(["yes", ",", "i", "do", "."], ".")]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=90))
@example(["river"] * 11 + ["and", "and", "window,", "window,", "window,", "yesterday"])
def test_parts_fit_limits_and_keep_words(words: list[str]) -> None:
    reading = normalise_text(" ".join(words))
    for part in reading.sentences:
        count = sum(word not in PUNCTUATION for word in part)
        written = re.sub(r" (?=\W)", "", " ".join(part))  # no blank before a mark
        # A part that is cut inside a clause gets a comma, which adds one character.
        assert count <= MOST_WORDS and len(written) <= LONGEST_PART + 1
    words_read = [re.sub("[^a-z]", "", word) for part in reading.sentences for word in part]
    assert [word for word in words_read if word] == [
        word for sentence in reading.undivided_sentences for word in sentence if word not in PUNCTUATION
    ]
