"""Lexicon: symbols, inflected words, spelled words, and fast loading."""

from __future__ import annotations

import subprocess
import sys

import pytest

from polydraft.modalities.speech.text.letters import predict_phones
from polydraft.modalities.speech.text.lexicon import (
    BOUNDARY,
    LETTERS,
    PHONES,
    PUNCTUATION,
    SYMBOLS,
    pronounce,
    pronounce_inflected,
    pronunciations,
    sentence_symbols,
    spell,
    word_symbols,
)


def test_symbols_have_vocabulary_size_and_order() -> None:
    assert len(SYMBOLS) == len(set(SYMBOLS)) == 1 + 4 + 40 + 26
    assert SYMBOLS[:5] == (BOUNDARY, *PUNCTUATION)


def test_pronunciations_use_only_phones() -> None:
    lexicon = pronunciations()
    assert len(lexicon) >= 45_000
    assert set(" ".join(lexicon.values()).split()) == set(PHONES)
    assert all(word.replace("'", "").isalpha() and word == word.lower() for word in lexicon)


def test_pronunciations_load_in_few_calls() -> None:
    """Check that loading makes far fewer calls than there are words, so that it is fast on any machine."""
    calls: list[str] = []
    pronunciations.cache_clear()
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        lexicon = pronunciations()
    finally:
        sys.setprofile(None)
    assert len(calls) < len(lexicon) / 10


def test_import_does_not_load_lexicon() -> None:
    code = (
        "from polydraft.modalities.speech.text import lexicon; "
        "assert lexicon.pronunciations.cache_info().currsize == 0; lexicon.pronounce('a'); "
        "assert lexicon.pronunciations.cache_info().currsize == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("word", "phones"),
    [
        ("the", "dh ax"), ("a", "ax"), ("hello", "hh ax l ow"), ("zebra", "z iy b r ax"), ("nasa", "n ae s ax"),
        ("don't", "d ow n t"), ("o'clock", "ax k l aa k"), ("read", "r eh d"), ("b", "b iy"),
    ],
)  # fmt: skip
def test_pronounce_known_word_returns_phones(word: str, phones: str) -> None:
    assert pronounce(word) == tuple(phones.split())


@pytest.mark.parametrize(
    ("word", "phones"),
    [
        ("cat's", "k ae t s"), ("dog's", "d ao g z"), ("fox's", "f aa k s ax z"),
        ("cats", "k ae t s"), ("foxes", "f aa k s ax z"), ("cities", "s ih t iy z"), ("walked", "w ao k t"),
        ("played", "p l ey d"), ("wanted", "w aa n t ax d"), ("baked", "b ey k t"), ("baking", "b ey k ih ng"),
        ("planned", "p l ae n d"), ("planning", "p l ae n ih ng"), ("carried", "k ae r iy d"),
    ],
)  # fmt: skip
def test_pronounce_inflected_derives_phones_from_stem(word: str, phones: str) -> None:
    stems = {
        "cat": "k ae t", "dog": "d ao g", "fox": "f aa k s", "city": "s ih t iy", "walk": "w ao k", "play": "p l ey",
        "want": "w aa n t", "bake": "b ey k", "plan": "p l ae n", "carry": "k ae r iy",
    }  # fmt: skip
    assert pronounce_inflected(word, stems) == phones.split()


@pytest.mark.parametrize("word", ["qzx", "bus", "ed", "ing", "s", "'s", "kiss", "qzx's", ""])
def test_pronounce_inflected_without_stem_returns_none(word: str) -> None:
    assert pronounce_inflected(word, {"kis": "k ih s", "b": "b iy"}) is None


def test_sentence_symbols_mixes_phones_and_letters() -> None:
    symbols = sentence_symbols(["the", "cats", ",", "zorbel", "."], {3})
    assert " ".join(symbols) == "dh ax | k ae t s , <z> <o> <r> <b> <e> <l> ."
    assert set(symbols) <= set(SYMBOLS)
    assert sentence_symbols(["the", "cat"], spelled={1}) == ["dh", "ax", BOUNDARY, "<c>", "<a>", "<t>"]
    assert sentence_symbols([]) == []


def test_word_symbols_agree_with_sentence_symbols() -> None:
    sentence = ["well", ",", "the", "zorbel", "cat", "?"]
    groups = word_symbols(sentence, spelled={4})
    assert groups[1] == (",",) and groups[3] == predict_phones("zorbel") and groups[4] == ("<c>", "<a>", "<t>")
    assert [symbol for group in groups for symbol in group] == [
        s for s in sentence_symbols(sentence, {4}) if s != BOUNDARY
    ]
    assert spell("it's") == ("<i>", "<t>", "<s>")
    assert set(LETTERS) >= set(spell("abcxyz"))
