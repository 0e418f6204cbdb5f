"""Division of sentences that are too long for a model, at points where a speaker would pause.

    divide_sentence(["we", "left", "on", "May", "sixth", ",", "twenty", "twenty", "four", ",", …])
    # [SentencePart(words=["we", "left", …, "four", ","], mark=","), SentencePart(words=[…, "."], mark=".")]

Cuts are chosen together, so that the sum of their costs is least (`cut_cost` and `PrefixLengths.part_cost`): no cost
after a comma that ends a clause, a low one before a conjunction, a high one inside a unit of meaning: a date, a number
and its unit, a title and a name, letters of an acronym, an article and its noun.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from polydraft.modalities.speech.text.lexicon import PUNCTUATION
from polydraft.modalities.speech.text.numerals import CURRENCIES, MONTHS, spell_number

LONGEST_PART = 110  # characters of a part, blanks and marks included
MOST_WORDS = 20  # words of a part
FEW_WORDS = 4  # least words of a part without extra cost; shorter clauses stay with their neighbours

# Costs of cuts; only their differences matter.
ANY = 1.0  # every cut
CONJUNCTION, PREPOSITION, ELSEWHERE = 2.0, 7.0, 11.0  # before such a word, without a comma
SHORT = 5.0  # for each word that a part or a clause at the cut lacks to FEW_WORDS
BEFORE_NUMBER = 6.0
LEANING = 20.0  # after a word that belongs to the next: "the | house"
LIST = 8.0  # after the comma in "Paris, | France"
WHOLE = 40.0  # inside a unit of meaning
UNEVEN = 3.0  # for a part that is nearly empty, compared with a full one


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONJUNCTIONS = word_set("""
    and but or nor because which that when while so if who whom whose where although though until unless since whereas
    whether as than
""")
PREPOSITIONS = word_set("""
    of in on at by for with from to into over under about after before between through during within without against
    among around behind beside beyond near toward towards upon
""")
FUNCTION_WORDS = word_set("""
    a an the this these those my your his her its our their every each no some any very too not is are was were be been
    am has have had will would can could shall should may might must do does did don't didn't isn't wasn't can't won't
    i you he she it we they i'm he's she's it's we're they're i'll i've
    plus minus number numbers page pages chapter volume figure room extension
""")
LEANERS = CONJUNCTIONS | PREPOSITIONS | FUNCTION_WORDS
LOOSE = (CONJUNCTIONS | PREPOSITIONS) - {"of", "to", "by"}  # words that begin another phrase after a number
TITLES = word_set("""
    mister missus miz miss doctor professor saint general governor colonel reverend senator president captain sergeant
    lieutenant king queen sir lady aunt uncle mount
""")
JOINTS = word_set("dot slash dash underscore")  # words for signs in an address
SCALES = word_set("hundred thousand million billion trillion point oh half halves quarter quarters")


class SentencePart(NamedTuple):
    """Part of a divided sentence."""

    words: list[str]  # lower-case words and marks, with a mark at the end
    mark: str  # mark after the part in the text; may be empty


@functools.cache
def number_words() -> frozenset[str]:
    """Return the words of numbers below a hundred, and of scales."""
    kinds = (spell_number(value, kind) for value in range(100) for kind in ("cardinal", "ordinal"))
    return SCALES.union(*(text.split() for text in kinds))


@functools.cache
def coin_names() -> frozenset[str]:
    return frozenset(name for names in CURRENCIES.values() for name in names)


def divide_sentence(sentence: Sequence[str]) -> list[SentencePart]:
    """Divide a sentence, whose names are capitalised, into lower-case parts at the least total cost."""
    lengths = PrefixLengths.from_sentence(sentence)
    if lengths.fits(0, len(sentence)):
        return [make_part(sentence)]
    best = [(0.0, 0)] + [(math.inf, 0)] * len(sentence)  # for every prefix: its cost, and the start of its last part
    cuts = [cut_cost(sentence, index) for index in range(len(sentence))]
    for end in range(1, len(sentence) + 1):
        if end < len(sentence) and sentence[end] in PUNCTUATION:
            continue
        cost = cuts[end] if end < len(sentence) else 0.0
        for begin in range(end - 1, -1, -1):
            if not lengths.fits(begin, end):
                break
            total = best[begin][0] + cost + lengths.part_cost(begin, end)
            if total < best[end][0]:
                best[end] = (total, begin)
    ends = [len(sentence)]
    while ends[-1]:
        ends.append(best[ends[-1]][1])
    return [make_part(sentence[begin:end]) for end, begin in reversed(list(zip(ends, ends[1:], strict=False)))]


def make_part(tokens: Sequence[str]) -> SentencePart:
    mark = tokens[-1] if tokens[-1] in PUNCTUATION else ""
    return SentencePart([token.lower() for token in tokens] + ([] if mark else [","]), mark)


class PrefixLengths(NamedTuple):
    """Lengths of the first tokens of a sentence, in characters and in words."""

    characters: list[int]
    words: list[int]

    @staticmethod
    def from_sentence(sentence: Sequence[str]) -> PrefixLengths:
        lengths = PrefixLengths([0], [0])
        for token in sentence:
            mark = token in PUNCTUATION
            lengths.characters.append(lengths.characters[-1] + len(token) + (not mark))
            lengths.words.append(lengths.words[-1] + (not mark))
        return lengths

    def fits(self, begin: int, end: int) -> bool:
        """Check whether these tokens can be one part; one word always can."""
        long = self.characters[end] - self.characters[begin] > LONGEST_PART
        return self.words[end] - self.words[begin] <= (1 if long else MOST_WORDS)

    def part_cost(self, begin: int, end: int) -> float:
        """Return the cost of a part of these tokens."""
        count = self.words[end] - self.words[begin]
        return SHORT * max(0, FEW_WORDS - count) + UNEVEN * (1 - count / MOST_WORDS) ** 2


def cut_cost(sentence: Sequence[str], index: int) -> float:
    """Return the cost of a cut before `sentence[index]`."""
    if index == 0 or sentence[index] in PUNCTUATION:
        return math.inf
    comma = sentence[index - 1] == ","
    last = sentence[index - 2] if comma else sentence[index - 1]
    if comma:
        cost = ANY + SHORT * max(
            0, FEW_WORDS - 1 - min(clause_length(sentence, index - 2, -1), clause_length(sentence, index, 1))
        )
    else:
        word = sentence[index].lower()
        cost = ANY + (CONJUNCTION if word in CONJUNCTIONS else PREPOSITION if word in PREPOSITIONS else ELSEWHERE)
    return cost + binding_cost(last, sentence[index], sentence[index + 1] if index + 1 < len(sentence) else "", comma)


def clause_length(sentence: Sequence[str], index: int, step: int) -> int:
    """Return the number of words from `index` to the next mark, at most FEW_WORDS."""
    count = 0
    while 0 <= index < len(sentence) and sentence[index] not in PUNCTUATION and count < FEW_WORDS:
        count, index = count + 1, index + step
    return count


def binding_cost(last: str, following: str, next_word: str, comma: bool) -> float:
    """Return the cost of a cut between `last` and `following` `next_word`, where a comma may be between the two."""
    numbers = number_words()
    before, after = last.lower(), following.lower()
    named = last[0].isupper() and following[0].isupper() and before not in LEANERS and after not in LEANERS
    if after in numbers and (before in numbers or before in MONTHS):
        return WHOLE  # "May sixth, | twenty", "five five five, | one two"
    if comma:
        return LIST if named else 0.0
    if before in numbers and after in LOOSE and next_word not in numbers:
        return 0.0
    if before in numbers or before in TITLES or before in MONTHS or named:
        return WHOLE
    if after == "and" and next_word in numbers:
        return (
            WHOLE if before in coin_names() else LEANING
        )  # "three dollars | and fifty cents", "nine a m | and five p m"
    if (len(before) == 1 or before == "ay") and (len(after) == 1 or after == "ay") and "a" not in (before, after):
        return WHOLE  # letters of an acronym
    if before in JOINTS or after in JOINTS:
        return WHOLE
    return (LEANING if before in LEANERS else 0.0) + (BEFORE_NUMBER if after in numbers else 0.0)
