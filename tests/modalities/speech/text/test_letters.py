"""Letter-to-sound rules: the trees, what they say of words no lexicon has, and how often they are right."""

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
    ("word", "said"),
    [("splink", "s p l ih ng k"), ("chome", "ch ow m")],
)
def test_made_up_words_sound_as_they_look(word: str, said: str) -> None:
    assert pronounce(word) is None and " ".join(predict_phones(word)) == said


def test_lexicon_words_are_mostly_right() -> None:
    words = [word for word in pronunciations() if word.isalpha()][::101]
    right = sum(predict_phones(word) == pronounce(word) for word in words)
    assert len(words) > 400 and right / len(words) > 0.55


@given(st.text(ALPHABET + "'", max_size=30))
def test_anything_has_a_sound_of_phones(word: str) -> None:
    said = predict_phones(word)
    assert set(said) <= set(PHONES) and len(said) <= 2 * len(word)
    assert predict_phones(word.replace("'", "")) == said


def test_a_tree_asks_and_answers() -> None:
    lines = ["?1h", "=ch", "?-1s", "=", "=k"] + ["=" + letter for letter in ALPHABET[1:]]
    found = parse_trees(lines)  # a stands for c here
    assert [predict_phones_with(found, word) for word in ("ah", "sa", "a")] == [("ch", "h"), ("s",), ("k",)]


def test_words_without_a_vowel_are_left_to_be_spelled() -> None:
    assert predict_phones("qzx") == () and word_symbols(["qzx", "vost"]) == [spell("qzx"), predict_phones("vost")]


def test_there_is_a_tree_for_every_letter() -> None:
    assert list(letter_trees().roots) == list(ALPHABET)
