"""Letter-to-sound rules: parsing of trees, phones of unknown words, and accuracy on the lexicon."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polydraft.modalities.speech.text.letters import (
    ALPHABET,
    letter_trees,
    parse_trees,
    predict_phones,
    predict_phones_with,
)
from polydraft.modalities.speech.text.lexicon import PHONES, pronounce, pronunciations, spell, word_symbols


@pytest.mark.parametrize(
    ("word", "phones"),
    [("splink", "s p l ih ng k"), ("chome", "ch ow m")],
)
def test_predict_phones_of_invented_word_follows_spelling(word: str, phones: str) -> None:
    assert pronounce(word) is None and " ".join(predict_phones(word)) == phones


def test_predict_phones_mostly_agrees_with_lexicon() -> None:
    words = [word for word in pronunciations() if word.isalpha()][::101]
    num_correct = sum(predict_phones(word) == pronounce(word) for word in words)
    assert len(words) > 400 and num_correct / len(words) > 0.55


@given(st.text(ALPHABET + "'", max_size=30))
def test_predict_phones_returns_only_phones(word: str) -> None:
    phones = predict_phones(word)
    assert set(phones) <= set(PHONES) and len(phones) <= 2 * len(word)
    assert predict_phones(word.replace("'", "")) == phones


def test_parse_trees_question_selects_branch() -> None:
    lines = ["?1h", "=ch", "?-1s", "=", "=k"] + ["=" + letter for letter in ALPHABET[1:]]
    trees = parse_trees(lines)  # the first tree, that of a, holds rules for c
    assert [predict_phones_with(trees, word) for word in ("ah", "sa", "a")] == [("ch", "h"), ("s",), ("k",)]


def test_predict_phones_without_vowel_is_empty() -> None:
    assert predict_phones("qzx") == () and word_symbols(["qzx", "vost"]) == [spell("qzx"), predict_phones("vost")]


def test_letter_trees_cover_the_alphabet() -> None:
    assert list(letter_trees().roots) == list(ALPHABET)
