"""Letter-to-sound rules for words that no lexicon has: decision trees, one a letter.

    sounds("mississauga")   # ("m", "ax", "s", "ih", "s", "ao", "g", "ax")

A letter has no phone, one or two, depending on the letters around it (Black, Lenzo and Pagel 1998, "Issues in building general
letter to sound rules"). `apps/lab/recipes/speech/reading/letters.py` learned the trees from the pronunciations of flite.
"""

from __future__ import annotations

import functools
import gzip
from importlib.resources import files
from typing import NamedTuple

REACH = 4  # letters of context on either side
EDGE = "-"  # padding before and after a word
VOWELS = frozenset("aeiouy")
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


class LetterTrees(NamedTuple):
    """Nodes in depth-first order, those where a question is answered yes first.

    questions: (how far away, which letter) of a question, None at a leaf; no: where its other branch begins; said:
    phones of a leaf. roots: the node to begin at, by letter.
    """

    questions: list[tuple[int, str] | None]  # (offset, letter) of a question, None at a leaf
    no_branches: list[int]  # start of the branch of the answer no
    phones: list[tuple[str, ...]]  # of a leaf
    roots: dict[str, int]  # first node, by letter


@functools.cache
def letter_trees() -> LetterTrees:
    packed = (files("polydraft.assets") / "speech" / "letters.txt.gz").read_bytes()
    return parse_trees(gzip.decompress(packed).decode("ascii").splitlines())


def parse_trees(lines: list[str]) -> LetterTrees:
    """Parse the trees of the alphabet's letters in turn, a node per line: the question "?-1c", or the leaf "=k s"."""
    trees = LetterTrees([], [], [], {})
    open_questions: list[int] = []  # questions whose branch of the answer no is still to come
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
    """Return the phones of a lower-case word; empty for words without a vowel, which are to be spelled."""
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
