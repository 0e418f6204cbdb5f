"""Pronunciation: a lexicon of phones, letter-to-sound rules for unknown words, and spelling for the rest.

    sentence_symbols(["the", "cats", ",", "zorbel", "."])  # dh ax | k ae t s , z ao r b ax l .

Two words are separated by a boundary, unless punctuation separates them. Pronunciations are flite's (American
English, no stress marks), one per word, as collected by `apps/lab/recipes/speech/reading/lexicon.py`.
"""

from __future__ import annotations

import functools
import gzip
from collections.abc import Collection, Sequence
from importlib.resources import files

from polydraft.modalities.speech.text.letters import ALPHABET, predict_phones

BOUNDARY = "|"
PUNCTUATION = (",", ".", "?", "!")
VOWELS = ("aa", "ae", "ah", "ao", "aw", "ax", "ay", "eh", "er", "ey", "ih", "iy", "ow", "oy", "uh", "uw")
CONSONANTS = (
    "b", "ch", "d", "dh", "f", "g", "hh", "jh", "k", "l", "m", "n", "ng", "p", "r", "s", "sh", "t", "th", "v", "w", "y",
    "z", "zh",
)  # fmt: skip
PHONES = (*VOWELS, *CONSONANTS)
LETTERS = tuple(f"<{letter}>" for letter in ALPHABET)
SYMBOLS = (BOUNDARY, *PUNCTUATION, *PHONES, *LETTERS)  # in the order of the vocabulary

INTERJECTIONS = {  # words without vowel letters that are not acronyms
    "hmm": "hh m", "shh": "sh", "psst": "p s t", "brr": "b er", "grr": "g er", "tsk": "t ih s k", "pfft": "p f t",
    "zzz": "z",
}  # fmt: skip
VOICELESS = frozenset(("ch", "f", "hh", "k", "p", "s", "sh", "t", "th"))
SIBILANTS = frozenset(("ch", "jh", "s", "sh", "z", "zh"))


@functools.cache
def pronunciations() -> dict[str, str]:
    """Return the lexicon: phones, separated by spaces, by word."""
    packed = (files("polydraft.assets") / "speech" / "lexicon.txt.gz").read_bytes()
    cells = gzip.decompress(packed).decode("ascii").replace("\n", "\t").split("\t")
    return dict(zip(cells[0::2], cells[1::2], strict=False))  # a last newline leaves an empty cell


def pronounce(word: str) -> tuple[str, ...] | None:
    """Return the phones of a lower-case word in the lexicon, or of an inflected form of one; None for others."""
    pronunciation = pronunciations().get(word) or INTERJECTIONS.get(word)
    phones = pronunciation.split() if pronunciation is not None else pronounce_inflected(word, pronunciations())
    return None if phones is None else tuple(phones)


def pronounce_inflected(word: str, lexicon: dict[str, str]) -> list[str] | None:
    """Return the phones of "cat's", "cats", "walked", "baking" from those of "cat", "walk" and "bake"."""
    for suffix, stems in candidate_stems(word):
        pronunciation = next((lexicon[stem] for stem in stems if stem in lexicon), None)
        if pronunciation is not None:
            phones = pronunciation.split()
            return phones + suffix_phones(suffix, phones[-1])
    return None


def candidate_stems(word: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the suffixes that `word` may have, each with possible spellings of its stem, likeliest first."""
    if word.endswith("'s"):
        return [("s", (word[:-2],))]
    if word.endswith("ies"):
        return [("s", (word[:-3] + "y", word[:-1]))]
    if word.endswith("s") and not word.endswith("ss"):
        return [("s", (word[:-1], word[:-2]) if word.endswith("es") else (word[:-1],))]
    for suffix in ("ed", "ing"):
        stem = word.removesuffix(suffix)
        if stem != word and len(stem) > 2:
            doubled = (stem[:-1],) if stem[-1] == stem[-2] else ()
            silent = (stem + "e",) if stem[-1] not in "aeiouy" else ()
            return [(suffix, (*silent, stem, *doubled, *((stem[:-1] + "y",) if suffix == "ed" else ())))]
    return []


def suffix_phones(suffix: str, last: str) -> list[str]:
    """Return the phones of a suffix after a stem that ends in the phone `last`."""
    if suffix == "s":
        return ["ax", "z"] if last in SIBILANTS else ["s"] if last in VOICELESS else ["z"]
    if suffix == "ed":
        return ["ax", "d"] if last in ("t", "d") else ["t"] if last in VOICELESS else ["d"]
    return ["ih", "ng"]


def spell(word: str) -> tuple[str, ...]:
    """Return the letter symbols of a word; apostrophes are silent."""
    return tuple(f"<{letter}>" for letter in word if letter != "'")


def word_symbols(sentence: Sequence[str], spelled: Collection[int] = ()) -> list[tuple[str, ...]]:
    """Return the phones or letters of each word, and punctuation as it is; words at indices `spelled` are spelled."""
    groups: list[tuple[str, ...]] = []
    for index, word in enumerate(sentence):
        if word in PUNCTUATION:
            groups.append((word,))
        else:
            groups.append((index not in spelled and (pronounce(word) or predict_phones(word))) or spell(word))
    return groups


def sentence_symbols(sentence: Sequence[str], spelled: Collection[int] = ()) -> list[str]:
    """Return a sentence (lower-case words and punctuation marks) in symbols of `SYMBOLS`."""
    symbols: list[str] = []
    for word, group in zip(sentence, word_symbols(sentence, spelled), strict=True):
        if symbols and word not in PUNCTUATION and symbols[-1] not in PUNCTUATION:
            symbols.append(BOUNDARY)
        symbols += group
    return symbols
