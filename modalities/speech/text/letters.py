"""How a word sounds by its letters, for words that no lexicon has: decision trees, one a letter.

    sounds("mississauga")   # ("m", "ax", "s", "ih", "s", "ao", "g", "ax")

A letter says no phone, one or two, by the letters around it (Black, Lenzo and Pagel 1998, "Issues in building general
letter to sound rules"). `apps/train/speech/reading/letters.py` learned the trees from what flite says.
"""

from __future__ import annotations

import functools
import gzip
from importlib.resources import files
from typing import NamedTuple

REACH = 4  # letters that are looked at, to either side
EDGE = "-"  # stands before and after a word
VOWELS = frozenset("aeiouy")
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


class Trees(NamedTuple):
    """Nodes in depth-first order, those where a question is answered yes first.

    asked: (how far away, which letter) of a question, None at a leaf; no: where its other branch begins; said: phones
    of a leaf. roots: the node to begin at, by letter.
    """

    asked: list[tuple[int, str] | None]
    no: list[int]
    said: list[tuple[str, ...]]
    roots: dict[str, int]


@functools.cache
def trees() -> Trees:
    packed = (files("polydraft.assets") / "speech" / "letters.txt.gz").read_bytes()
    return parse(gzip.decompress(packed).decode("ascii").splitlines())


def parse(lines: list[str]) -> Trees:
    """Trees of the alphabet's letters in turn, a node a line: "?-1c" asks for c before the letter, "=k s" says."""
    found = Trees([], [], [], {})
    open_: list[int] = []  # questions whose other branch is still to come
    begins = True
    for at, line in enumerate(lines):
        if begins:
            found.roots[ALPHABET[len(found.roots)]] = at
        question = line[0] == "?"
        found.asked.append((int(line[1:-1]), line[-1]) if question else None)
        found.said.append(() if question else tuple(line[1:].split()))
        found.no.append(at)
        begins = False
        if question:
            open_.append(at)
        elif open_:
            found.no[open_.pop()] = at + 1
        else:
            begins = True
    return found


def sounds(word: str) -> tuple[str, ...]:
    """Phones of a lower-case word; other signs than letters have none. Nothing of words without a vowel: spell them."""
    return sounds_by(trees(), word) if VOWELS & set(word) else ()


def sounds_by(known: Trees, word: str) -> tuple[str, ...]:
    """The same by given trees."""
    letters = EDGE * REACH + "".join(letter for letter in word if letter in ALPHABET) + EDGE * REACH
    phones: list[str] = []
    for place in range(REACH, len(letters) - REACH):
        at = known.roots[letters[place]]
        while (question := known.asked[at]) is not None:
            away, letter = question
            at = at + 1 if letters[place + away] == letter else known.no[at]
        phones += known.said[at]
    return tuple(phones)
