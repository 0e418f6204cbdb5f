"""Letter-to-sound rules for words that no lexicon has: decision trees, one a letter.

    sounds("mississauga")   # ("m", "ax", "s", "ih", "s", "ao", "g", "ax")

A letter says no phone, one or two, by the letters around it (Black, Lenzo and Pagel 1998, "Issues in building general
letter to sound rules"). `apps/lab/recipes/speech/reading/letters.py` learned the trees from what flite says.
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


class LetterTrees(NamedTuple):
    """Nodes in depth-first order, those where a question is answered yes first.

    questions: (how far away, which letter) of a question, None at a leaf; no: where its other branch begins; said:
    phones of a leaf. roots: the node to begin at, by letter.
    """

    questions: list[tuple[int, str] | None]
    no_branches: list[int]
    phones: list[tuple[str, ...]]
    roots: dict[str, int]


@functools.cache
def letter_trees() -> LetterTrees:
    packed = (files("polydraft.assets") / "speech" / "letters.txt.gz").read_bytes()
    return parse_trees(gzip.decompress(packed).decode("ascii").splitlines())


def parse_trees(lines: list[str]) -> LetterTrees:
    """Trees of the alphabet's letters in turn, a node a line: "?-1c" asks for c before the letter, "=k s" says."""
    trees = LetterTrees([], [], [], {})
    open_questions: list[int] = []  # questions whose other branch is still to come
    begins = True
    for at, line in enumerate(lines):
        if begins:
            trees.roots[ALPHABET[len(trees.roots)]] = at
        question = line[0] == "?"
        trees.questions.append((int(line[1:-1]), line[-1]) if question else None)
        trees.phones.append(() if question else tuple(line[1:].split()))
        trees.no_branches.append(at)
        begins = False
        if question:
            open_questions.append(at)
        elif open_questions:
            trees.no_branches[open_questions.pop()] = at + 1
        else:
            begins = True
    return trees


def predict_phones(word: str) -> tuple[str, ...]:
    """Phones of a lower-case word; other signs than letters have none. Nothing of words without a vowel: spell them."""
    return predict_phones_with(letter_trees(), word) if VOWELS & set(word) else ()


def predict_phones_with(trees: LetterTrees, word: str) -> tuple[str, ...]:
    """Return the phones of a word by given trees."""
    letters = EDGE * REACH + "".join(letter for letter in word if letter in ALPHABET) + EDGE * REACH
    phones: list[str] = []
    for place in range(REACH, len(letters) - REACH):
        at = trees.roots[letters[place]]
        while (question := trees.questions[at]) is not None:
            away, letter = question
            at = at + 1 if letters[place + away] == letter else trees.no_branches[at]
        phones += trees.phones[at]
    return tuple(phones)
