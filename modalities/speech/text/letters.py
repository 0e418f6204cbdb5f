"""Letter-to-sound rules for words that no lexicon has: one decision tree per letter.

    predict_phones("mississauga")   # ("m", "ax", "s", "ih", "s", "ao", "g", "ax")

A letter has no phone, one or two, depending on the letters around it (Black, Lenzo and Pagel 1998, "Issues in building
general letter to sound rules"). `apps/lab/recipes/speech/reading/letters.py` learned the trees from flite's
pronunciations.
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
    """Decision trees of all letters as nodes in depth-first order, with the branch of the answer yes first."""

    questions: list[tuple[int, str] | None]  # (offset, letter) of a question, None at a leaf
    no_branches: list[int]  # start of the branch of the answer no
    phones: list[tuple[str, ...]]  # of a leaf
    roots: dict[str, int]  # first node, by letter


@functools.cache
def letter_trees() -> LetterTrees:
    """Load the trees that are part of the package."""
    packed = (files("polydraft.assets") / "speech" / "letters.txt.gz").read_bytes()
    return parse_trees(gzip.decompress(packed).decode("ascii").splitlines())


def parse_trees(lines: list[str]) -> LetterTrees:
    """Parse the trees of the alphabet's letters in turn, a node per line: the question "?-1c", or the leaf "=k s"."""
    trees = LetterTrees([], [], [], {})
    open_questions: list[int] = []  # questions whose branch of the answer no is still to come
    is_root = True
    for node, line in enumerate(lines):
        if is_root:
            trees.roots[ALPHABET[len(trees.roots)]] = node
        question = line[0] == "?"
        trees.questions.append((int(line[1:-1]), line[-1]) if question else None)
        trees.phones.append(() if question else tuple(line[1:].split()))
        trees.no_branches.append(node)
        is_root = False
        if question:
            open_questions.append(node)
        elif open_questions:
            trees.no_branches[open_questions.pop()] = node + 1
        else:
            is_root = True
    return trees


def predict_phones(word: str) -> tuple[str, ...]:
    """Return the phones of a lower-case word; empty for words without a vowel, which are to be spelled."""
    return predict_phones_with(letter_trees(), word) if VOWELS & set(word) else ()


def predict_phones_with(trees: LetterTrees, word: str) -> tuple[str, ...]:
    """Return the phones of a word by given trees."""
    letters = EDGE * REACH + "".join(letter for letter in word if letter in ALPHABET) + EDGE * REACH
    phones: list[str] = []
    for position in range(REACH, len(letters) - REACH):
        node = trees.roots[letters[position]]
        while (question := trees.questions[node]) is not None:
            offset, letter = question
            node = node + 1 if letters[position + offset] == letter else trees.no_branches[node]
        phones += trees.phones[node]
    return tuple(phones)
