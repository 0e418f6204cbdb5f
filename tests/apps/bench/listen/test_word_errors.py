"""Words are compared as published word error rates are: normalised by Whisper's rules, then aligned."""

from __future__ import annotations

import pytest

from polydraft.apps.measure.word_errors import WordEdits, count_word_edits, text_normaliser


@pytest.mark.parametrize(
    ("reference", "transcript", "edits"),
    [
        ("we meet again", "we meet again", WordEdits(3)),
        ("we meet again", "we meat again", WordEdits(3, substitutions=1)),
        ("we meet again", "meet again tomorrow", WordEdits(3, insertions=1, deletions=1)),
        ("we meet again", "", WordEdits(3, deletions=3)),
        ("", "hm", WordEdits(0, insertions=1)),
    ],
)
def test_word_edits_are_minimal_and_by_kind(reference: str, transcript: str, edits: WordEdits) -> None:
    assert count_word_edits(reference.split(), transcript.split()) == edits


def test_word_error_rates_add_up() -> None:
    whole = WordEdits(6, substitutions=1) + WordEdits(2, insertions=1, deletions=1)
    assert whole == WordEdits(8, 1, 1, 1) and whole.errors == 3 and whole.rate == 3 / 8


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("It's Mr. Smith's twenty dogs.", "it is mister smith's 20 dogs"),
        ("Well, um, I can't.", "well i can not"),
        ("It cost two dollars and fifty cents", "it cost $2.50"),
    ],
)
def test_english_is_normalised_by_whispers_rules(first: str, second: str) -> None:
    normalise = text_normaliser("en")
    assert normalise(first) == normalise(second)


def test_other_languages_lose_marks_and_case() -> None:
    assert text_normaliser("de")("Zwanzig Hunde, ja!") == ["zwanzig", "hunde", "ja"]
