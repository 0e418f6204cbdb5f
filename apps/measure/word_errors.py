"""Word errors of transcripts: texts normalised as published word error rates are, then aligned word by word.

normalise = text_normaliser("en")
edits = count_word_edits(normalise("It's Mr. Smith's twenty dogs."), normalise("It is mister Smith's 20 docks"))
edits.errors, edits.rate      # 1, 0.17
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polydraft.core.checks.extras import optional_import
from polydraft.modalities.speech.text.reading import normalise_text

Normaliser = Callable[[str], list[str]]


@dataclass(frozen=True)
class WordEdits:
    """Fewest edits that turn the words of a reference into those of a transcript (Levenshtein 1966)."""

    words: int = 0  # of the reference
    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0

    def __add__(self, other: WordEdits) -> WordEdits:
        return WordEdits(
            self.words + other.words, self.substitutions + other.substitutions, self.insertions + other.insertions,
            self.deletions + other.deletions,
        )  # fmt: skip

    @property
    def errors(self) -> int:
        """Return the number of edits."""
        return self.substitutions + self.insertions + self.deletions

    @property
    def rate(self) -> float:
        """Return the word error rate."""
        return self.errors / max(1, self.words)


def count_word_edits(reference: Sequence[str], transcript: Sequence[str]) -> WordEdits:
    """Align two lists of words and count the edits.

    Args:
        reference (Sequence[str]): Words that were spoken.
        transcript (Sequence[str]): Words that were recognised.

    Raises:
        MissingPackage: rapidfuzz is not installed.
    """
    with optional_import("counting word errors"):
        from rapidfuzz.distance import Levenshtein
    kinds = Counter(edit.tag for edit in Levenshtein.editops(reference, transcript))
    return WordEdits(len(reference), kinds["replace"], kinds["insert"], kinds["delete"])


def words_of(text: str) -> str:
    """Return `text` as the embedded voices read it: words, and the marks between them."""
    return " ".join(word for words in normalise_text(text).undivided_sentences for word in words)


def text_normaliser(language: str) -> Normaliser:
    """Return Whisper's normaliser of a language (Radford et al. 2022, appendix C), followed by a split into words.

    In English, contractions, titles and spelt numbers have one form each; spellings of countries are kept, since the
    published table of them comes with no package. In other languages only marks and case are dropped.

    Args:
        language (str): Its code.
    """
    from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

    normalise = EnglishTextNormalizer({}) if language == "en" else BasicTextNormalizer()
    return lambda text: normalise(text).split()
