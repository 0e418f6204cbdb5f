"""Sentence segmentation of plain text, for all speech models.

    split_sentences("The U.S. economy grew. Dr. Smith came at 5 p.m. He left.")
    # ["The U.S. economy grew.", "Dr. Smith came at 5 p.m.", "He left."]

Boundaries are sentencex's (Wikimedia, MIT; some 300 languages, whose rules of English hold for other scripts too).
Its errors in common text are corrected here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from polydraft.modalities.speech.text.abbreviations import (
    ABBREVIATIONS,
    BEFORE_NAMES,
    BEFORE_NUMBERS,
    CAPITALISED,
    DAYS,
)
from polydraft.modalities.speech.text.numerals import MONTHS, UNITS


def alternation(names: Iterable[str]) -> str:
    """Return a regular expression that matches any of `names`, the longest first."""
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))


DATED = [short for short, full in CAPITALISED.items() if full.lower() in (*MONTHS, *DAYS)]
NAMED = [short for short in CAPITALISED if short not in DATED and short != "Co"]
LAST_WORD = r"(?:^|[\s(\[\"'“‘/–-])"
NEVER_LAST = re.compile(rf"{LAST_WORD}(?:(?i:{alternation(BEFORE_NAMES)})|{alternation(NAMED)})\.\s*$")
AFTER_NAMES = re.compile(r"(?:[A-Z][a-z]+|[0-9](?:st|nd|rd|th)) (?:Dr|St)\.\s*$")  # "Elm Dr.", "5th St."
ANY_SHORT = re.compile(
    rf"{LAST_WORD}(?i:{alternation([*ABBREVIATIONS, *BEFORE_NUMBERS])})\.\s*$|{LAST_WORD}(?:{alternation(DATED)})\.\s*$"
    rf"|[0-9] ?(?i:{alternation(filter(str.isalpha, UNITS))})\.\s*$"
)
BEFORE_A_NUMBER = re.compile(rf"{LAST_WORD}(?:(?i:{alternation(BEFORE_NUMBERS)})|{alternation(DATED)})\.\s*$")
HALF_DAY = re.compile(r"[ap]\.m\.\s*$", re.IGNORECASE)
DAY_OR_ZONE = re.compile(rf"(?i:{'|'.join((*DAYS, *MONTHS))})\b|[ECMP][SD]?T\b|GMT\b|UTC\b|BST\b|CE[S]?T\b")
ITEM = re.compile(r"(?:[0-9]{1,3}|[A-Za-z]|[ivxIVX]{1,4})[.)]")
REPORTED = re.compile(r"(?:と|って|[、，])")  # after a quotation, in Japanese
CLOSED = tuple("」』”’")
# A closing mark or an emoji belongs to the sentence before it.
TRAILING = re.compile("[)\\]}”’»」』\u2600-\u27bf\U0001f300-\U0001faff\ufe0f\u200d]+ *")

LEADING_STOPS = re.compile(r"^(?:[.!?…]+ )+")

# Matches inside two sentences: "(He was late.) She was not.", "by 4.8 m. Prof. Okafor"
TWO_SENTENCES = re.compile(r"(^\([^()]*[.!?]\) )(?=[A-Z\"“(])|([0-9] ?[mglshWV]\. )(?=[A-Z])")


def split_sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph, with one blank between words."""
    import sentencex

    text = " ".join(paragraph.split())
    pieces = [piece for segment in sentencex.segment("en", text) for piece in split_further(segment)]
    sentences: list[str] = []
    for piece in pieces:
        if sentences and (continues_sentence(sentences[-1], piece) or is_item(sentences)):
            sentences[-1] += piece
        elif piece.strip():
            sentences.append(piece)
    return [LEADING_STOPS.sub("", sentence.strip()) for sentence in sentences]


def split_further(piece: str) -> list[str]:
    """Return `piece` split where it holds two sentences that sentencex leaves together."""
    trailing = TRAILING.match(piece)
    cuts = [0, trailing.end() if trailing else 0, *(match.end() for match in TWO_SENTENCES.finditer(piece)), len(piece)]
    return [piece[begin:end] for begin, end in zip(cuts, cuts[1:], strict=False)]


def continues_sentence(before: str, after: str) -> bool:
    """Check whether `after` continues the sentence `before`."""
    ends_in_blank = before[-1:].isspace()
    if not any(c.isalnum() for c in after):
        return True
    if NEVER_LAST.search(before) and not AFTER_NAMES.search(before):
        return True
    if after[0].islower() and ANY_SHORT.search(before):
        return True
    if after[0].isdigit() and BEFORE_A_NUMBER.search(before):
        return True
    if HALF_DAY.search(before) and DAY_OR_ZONE.match(after):
        return True
    if not ends_in_blank and before.endswith(".") and re.match("[A-Z]{2}|[-–/']", after):
        return True  # "ASP.NET", "Mon.-Fri."
    return not ends_in_blank and before.endswith(CLOSED) and REPORTED.match(after) is not None


def is_item(sentences: list[str]) -> bool:
    """Check whether the last of `sentences` is only the number of a list item: "1. Wash it. 2. Dry it." """
    if not ITEM.fullmatch(sentences[-1].strip()):
        return False
    return len(sentences) == 1 or ITEM.match(sentences[0]) is not None
