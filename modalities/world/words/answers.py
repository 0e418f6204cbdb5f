"""Claims of free text about an emoji scene, and whether they are true.

    parse_claims("Two pandas are to the left of a small rocket.").are_true_of(Truth.from_composition(composition))

The parser knows the words of the caption grammar and their variants, yes and no, negations, and relations stated from
either side ("on its left is a dog"). It skips unknown words; all claims that it understands must be true.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from polydraft.modalities.world.scene import BACKGROUNDS, MIRRORED, RELATIONS, Composition, Scene, is_in_relation
from polydraft.modalities.world.words.captions import pluralise
from polydraft.modalities.world.words.parsing import KIND_OF, NUMBERS, RELATION_OF, SIZE_OF, VARIANTS

NUMBER_VALUES = NUMBERS | {
    "no": 0, "zero": 0, "single": 1, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
}  # fmt: skip
ONLY_BEFORE_NOUNS = ("a", "an", "no", "single")  # numbers only before a noun
COLOURS = {*BACKGROUNDS, "red", "white", "black", "brown", "turquoise", "teal", "cyan", "magenta", "beige", "violet"}
NEGATIONS = {"no", "not", "without", "neither", "nor", "never", "none", "cannot"}
PHRASE_VARIANTS = {
    "navy blue": "navy", "dark blue": "navy", "on top of": "above", "no other": "else", "a pair of": "two",
    "a couple of": "two",
}  # fmt: skip
OBJECT_WORDS = {"object", "objects", "thing", "things", "item", "items", "emoji", "emojis"}
COLLECTIVE_WORDS = {"both", "all", "they", "everything"}
CLAUSE_ENDS = {",", "and", "but", "while", "so", "where", "which"}
# A number or a size does not modify a noun beyond these words.
REACH_ENDS = CLAUSE_ENDS | {
    "is",
    "are",
    "the",
    "of",
    "on",
    "in",
    "with",
    "to",
    "at",
    "or",
    "that",
    "it",
    "there",
    "has",
    "have",
}
BEFORE_PREDICATES = {"is", "are", "both", "all", "very", "quite", "rather", "looks", "look", "not"}
MAX_REACH = 4  # largest distance of a number to its noun: "two very small cute pandas"


@dataclass(frozen=True)
class MentionClaim:
    """Claim that objects of a kind are in the scene. None is left open by the text."""

    kind: str
    count: int | None
    many: bool | None  # plural or singular
    size: str | None
    denied: bool  # whether the text claims the opposite

    def is_true(self, truth: Truth) -> bool:
        count = truth.counts.get(self.kind, 0)
        same_size = self.size is None or truth.sizes.get(self.kind) in (None, self.size)
        if self.denied:  # "no small panda" is true where the pandas are large
            return not (count and same_size)
        if self.count is None and self.many is not None:
            return same_size and (count > 1 if self.many else count == 1)
        return same_size and count > 0 and self.count in (None, count)


@dataclass(frozen=True)
class SizeClaim:
    """Claim about the size of a kind."""

    kind: str | None  # None is every kind
    size: str
    denied: bool

    def is_true(self, truth: Truth) -> bool:
        kinds = truth.counts if self.kind is None else [self.kind]
        return all(truth.sizes.get(kind) in (None, self.size) for kind in kinds) != self.denied


@dataclass(frozen=True)
class RelationClaim:
    """Claim about the relation of two kinds."""

    first: str | None  # None is the subject of the question
    relation: str
    second: str | None  # None is the other kind
    denied: bool

    def is_true(self, truth: Truth, subject: str | None) -> bool:
        first, second = self.first, self.second
        if first is None:
            first = subject if second is None or subject != second else truth.other(second)
        if first is None and second is None:  # "one stands above the other"
            return any(relation == self.relation for _, relation, _ in truth.relations) != self.denied
        if first is not None and second is None:
            second = truth.other(first)
        return ((first, self.relation, second) in truth.relations) != self.denied


@dataclass(frozen=True)
class Truth:
    """Facts about a scene."""

    counts: dict[str, int]  # by kind
    sizes: dict[str, str | None]  # by kind; None is left open
    relations: frozenset[tuple[str | None, str, str | None]]  # kind, relation, kind
    background: str

    @staticmethod
    def from_composition(composition: Composition, scene: Scene | None = None) -> Truth:
        """Collect the facts of a composition, and with a scene also its visible relations and sizes."""
        counts = {group.kind: group.count for group in composition.groups}
        sizes = {group.kind: group.size for group in composition.groups}
        relations: set[tuple[str | None, str, str | None]] = set()
        if composition.relation is not None:
            first, second = counts
            relations = {(first, composition.relation, second), (second, MIRRORED[composition.relation], first)}
        if scene is not None:
            sizes |= {item.kind: item.size for item in scene.objects}
            relations |= set(visible_relations(scene))
        return Truth(counts, sizes, frozenset(relations), composition.background)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def other(self, kind: str) -> str | None:
        """Return the other kind of the scene, None if there is only one."""
        return next((name for name in self.counts if name != kind), None)


def visible_relations(scene: Scene) -> Iterator[tuple[str, str, str]]:
    """Yield the relations that all objects of one kind have to all objects of another."""
    for first in scene.objects:
        for second in scene.objects:
            these, those = ([item for item in scene.objects if item.kind == one.kind] for one in (first, second))
            for relation in RELATIONS:
                if first.kind != second.kind and all(is_in_relation(a, relation, b) for a in these for b in those):
                    yield first.kind, relation, second.kind


@dataclass
class Claims:
    """Claims of a text."""

    polarity: bool | None = None  # a leading yes or no
    loose: bool = False  # whether a negation denies nothing that is named ("there are none")
    mentions: list[MentionClaim] = field(default_factory=list)
    sizes: list[SizeClaim] = field(default_factory=list)
    relations: list[RelationClaim] = field(default_factory=list)
    colours: list[tuple[str, bool]] = field(default_factory=list)  # of the background, and whether denied
    numbers: list[int] = field(default_factory=list)  # without a kind
    totals: list[int] = field(default_factory=list)  # of all objects

    @property
    def kinds(self) -> set[str]:
        """Return the kinds that the text claims to be in the scene."""
        return {mention.kind for mention in self.mentions if not mention.denied}

    def counts(self, kind: str) -> set[int]:
        """Return the numbers that the text claims for a kind."""
        counts = (mention.count for mention in self.mentions if mention.kind == kind and not mention.denied)
        return {count for count in counts if count is not None}

    def are_true_of(self, truth: Truth, subject: str | None = None) -> bool:
        """Return whether every claim is true.

        Args:
            truth (Truth): the facts.
            subject (str | None): the kind that a relation without a subject is about.
        """
        return (
            all(mention.is_true(truth) for mention in self.mentions)
            and all(size.is_true(truth) for size in self.sizes)
            and all(relation.is_true(truth, subject) for relation in self.relations)
            and all((colour == truth.background) != denied for colour, denied in self.colours)
            and all(number in (truth.total, *truth.counts.values()) for number in self.numbers)
            and all(number == truth.total for number in self.totals)
        )


def parse_claims(text: str) -> Claims:
    """Parse the claims of a text, sentence by sentence."""
    polarity = re.match(r"\W*(yes|yeah|yep|no|nope)\b", text.lower())
    claims = Claims(polarity=None if polarity is None else polarity[1].startswith("y"))
    for sentence in re.split(r"[.!?;:\n]+", text.lower()):
        words = split_sentence(sentence)
        if words:
            SentenceParser(words).add_claims(claims)
    return claims


def split_sentence(sentence: str) -> list[str]:
    """Split a sentence into words and commas in the spelling of the grammar, without a leading yes or no.

    "isn't" becomes "is not". A "no" before a noun is kept.
    """
    plain = re.sub(r"n['\u2019]t\b", " not", sentence)
    plain = re.sub(r"['\u2019]\w+\b", "", plain)
    words = " ".join(re.findall(r"[^\W_]+|,", plain))
    for phrase, word in PHRASE_VARIANTS.items():
        words = re.sub(rf"\b{phrase}\b", word, words)
    # In "a cat is present" there is no gift.
    words = re.sub(r"(?<=\b(?:is|be)) present\b|(?<=\bare) present\b", "", words)
    known = [VARIANTS.get(word, word) for word in words.split()]
    is_answer = not any(word in KIND_OF or word in SIZE_OF for word in known[1:2])  # unlike in "no cat is there"
    return known[1:] if known and known[0] in ("yes", "yeah", "yep", "no", "nope") and is_answer else known


def parse_number(word: str) -> int | None:
    """Return the number of a word, None for other words."""
    return int(word) if word.isascii() and word.isdigit() else NUMBER_VALUES.get(word)


class SentenceParser:
    """Parser of one sentence; all lists hold indices of words."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.kinds: list[int] = [index for index, word in enumerate(words) if word in KIND_OF]
        self.modifiers: dict[int, list[int]] = {index: self.find_modifiers(index) for index in self.kinds}
        taken = {index for modifiers in self.modifiers.values() for index in modifiers}
        self.relations: list[int]
        self.relations = [index for index, word in enumerate(words) if word in RELATION_OF and self.is_relation(index)]
        self.colours: list[int] = [
            index for index, word in enumerate(words) if word in COLOURS and self.is_background_colour(index)
        ]
        self.sizes: list[int] = [
            index for index, word in enumerate(words)
            if word in SIZE_OF and index not in taken and self.word_at(index - 1) in BEFORE_PREDICATES
        ]  # fmt: skip
        self.numbers: list[int] = [
            index for index, word in enumerate(words)
            if parse_number(word) is not None and index not in taken and self.is_bare_number(index)
        ]  # fmt: skip
        self.denied: set[int]
        self.loose: bool
        self.denied, self.loose = self.find_denials()

    def word_at(self, index: int) -> str:
        """Return the word at an index, empty outside the sentence."""
        return self.words[index] if 0 <= index < len(self.words) else ""

    def find_modifiers(self, noun: int) -> list[int]:
        """Return the indices of the number and the size of a noun."""
        modifiers = []
        for index in range(noun - 1, max(noun - 1 - MAX_REACH, -1), -1):
            if self.words[index] in REACH_ENDS or self.words[index] in KIND_OF:
                break
            if parse_number(self.words[index]) is not None or self.words[index] in SIZE_OF:
                modifiers.append(index)
        return modifiers

    def is_relation(self, index: int) -> bool:
        """Return whether a word like "left" or "over" is a relation, not part of "that's right" or "all over"."""
        word, before, after = self.words[index], self.word_at(index - 1), self.word_at(index + 1)
        if word in ("left", "right"):
            is_relation = before in ("the", "its", "their", "on", "to", "at") or after in ("of", "side")
            return is_relation or len(self.words) == 1
        return word not in ("over", "under") or self.find_object(index) is not None

    def is_background_colour(self, index: int) -> bool:
        """Return whether a colour is the background's, not an object's."""
        if not self.kinds or {self.word_at(index - 1), self.word_at(index - 2)} & {"on", "against"}:
            return True
        ahead = self.words[index + 1 : index + 1 + MAX_REACH]
        behind = self.words[self.clause_range(index).start : index]
        near = ahead[: next((position for position, word in enumerate(ahead) if word in KIND_OF), None)]
        return "background" in near or "background" in behind

    def is_bare_number(self, index: int) -> bool:
        """Return whether a number without a noun counts objects; "one" may be a pronoun."""
        if self.words[index] in ONLY_BEFORE_NOUNS:
            return False
        return self.words[index] != "one" or self.word_at(index + 1) in {"", ",", "of"} | OBJECT_WORDS

    def clause_range(self, index: int) -> range:
        """Return the range of the clause of a word, between commas and conjunctions."""
        start = next((position + 1 for position in range(index - 1, -1, -1) if self.words[position] in CLAUSE_ENDS), 0)
        ends = (position for position in range(index + 1, len(self.words)) if self.words[position] in CLAUSE_ENDS)
        return range(start, next(ends, len(self.words)))

    def find_denials(self) -> tuple[set[int], bool]:
        """Find what negations deny.

        A negation denies the next word with a meaning in its clause and what "or" joins to it, else the one before.

        Returns:
            tuple[set[int], bool]: indices of denied words, and whether a negation denies no word.
        """
        marks = sorted({*self.kinds, *self.relations, *self.colours, *self.sizes})
        denied: set[int] = set()
        loose = False
        for index in (position for position, word in enumerate(self.words) if word in NEGATIONS):
            clause = self.clause_range(index)
            after = [mark for mark in marks if index < mark < clause.stop]
            before = [mark for mark in marks if clause.start <= mark < index]
            joined = [
                mark for last, mark in zip(after, after[1:], strict=False) if "or" in self.words[last:mark]
            ]  # fmt: skip
            denied |= {*after[:1], *joined} if after else set(before[-1:])
            loose |= not (after or before)
        return denied, loose

    def find_object(self, index: int) -> int | None:
        """Return the index of a relation's object ("of the two small rockets"), None for "on the right a rocket"."""
        if self.words[index] in ("left", "right") and "of" not in self.words[index + 1 : index + 3]:
            return None
        for position in range(index + 1, min(index + 3 + MAX_REACH, len(self.words))):
            word = self.words[position]
            if word in KIND_OF:
                return position
            if word in REACH_ENDS - {"of", "the"} or word in RELATION_OF:
                return None
        return None

    def nearest_kind(self, indices: Iterable[int], *conditions: Callable[[int], bool]) -> str | None:
        """Return the kind at the first index that meets the first condition which any index meets, None without one."""
        indices = list(indices)
        matches = (position for condition in conditions for position in indices if condition(position))
        return next((KIND_OF[self.words[position]] for position in matches), None)

    def relation_claim(self, index: int) -> RelationClaim:
        """Build the claim of a relation.

        Its subject is searched in the clause and then in the sentence, before the relation first.
        """
        object_index = self.find_object(index)
        second = None if object_index is None else KIND_OF[self.words[object_index]]
        clause = self.clause_range(index)
        others = [
            position for position in self.kinds
            if position != object_index and KIND_OF[self.words[position]] != second
        ]  # fmt: skip
        others.sort(key=lambda position: abs(position - index))
        if self.word_at(index - 1) in ("its", "their"):  # "a dog, and on its left a cat"
            first = self.nearest_kind(others, lambda position: position > index, lambda position: position < index)
        else:
            first = self.nearest_kind(
                others,
                lambda position: clause.start <= position < index, lambda position: index < position < clause.stop,
                lambda position: position < index, lambda position: position > index,
            )  # fmt: skip
        return RelationClaim(first, RELATION_OF[self.words[index]], second, index in self.denied)

    def kinds_of_size(self, index: int) -> list[str | None]:
        """Return the kinds that a predicate ("… are small") is about; None is every kind."""
        before = [KIND_OF[self.words[position]] for position in self.kinds if position < index]
        if not before:
            return [None]
        return list(before) if COLLECTIVE_WORDS & set(self.words[:index]) else [before[-1]]

    def add_claims(self, claims: Claims) -> None:
        """Add the claims of the sentence."""
        for index in self.kinds:
            kind = KIND_OF[self.words[index]]
            words = [self.words[position] for position in self.modifiers[index]]
            count = next((number for word in words if (number := parse_number(word)) is not None), None)
            size = next((SIZE_OF[word] for word in words if word in SIZE_OF), None)
            many = None if pluralise(kind) == kind else self.words[index] != kind
            denied = count == 0 or index in self.denied
            claims.mentions.append(MentionClaim(kind, count, many, size, denied))
        for index in self.sizes:
            size = SIZE_OF[self.words[index]]
            claims.sizes += [SizeClaim(kind, size, index in self.denied) for kind in self.kinds_of_size(index)]
        claims.relations += [self.relation_claim(index) for index in self.relations]
        claims.colours += [(self.words[index], index in self.denied) for index in self.colours]
        for index in self.numbers:
            number = parse_number(self.words[index])
            assert number is not None
            (claims.totals if self.word_at(index + 1) in OBJECT_WORDS else claims.numbers).append(number)
        claims.loose |= self.loose
