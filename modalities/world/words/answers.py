"""What a free text claims about an emoji scene, and whether all of it is true.

    claims("Two pandas are to the left of a small rocket.").true_of(Truth.of(composition))

The reader knows the words of the caption grammar and their variants, yes and no, negations, and relations said from
either side ("on its left is a dog"). What it does not know it passes over; what it does know must be true.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from polydraft.modalities.world.scene import BACKGROUNDS, MIRROR, RELATIONS, Composition, Scene, stands
from polydraft.modalities.world.words.captions import plural
from polydraft.modalities.world.words.parsing import KIND_OF, NUMBERS, RELATION_OF, SIZE_OF, VARIANTS

COUNTING = NUMBERS | {
    "no": 0, "zero": 0, "single": 1, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
}  # fmt: skip
ONLY_BEFORE_NOUNS = ("a", "an", "no", "single")  # numbers where a noun follows, and nothing elsewhere
COLOURS = {*BACKGROUNDS, "red", "white", "black", "brown", "turquoise", "teal", "cyan", "magenta", "beige", "violet"}
NEGATIONS = {"no", "not", "without", "neither", "nor", "never", "none", "cannot"}
PHRASES = {
    "navy blue": "navy", "dark blue": "navy", "on top of": "above", "no other": "else", "a pair of": "two",
    "a couple of": "two",
}  # fmt: skip
OBJECTS = {"object", "objects", "thing", "things", "item", "items", "emoji", "emojis"}
EVERYONE = {"both", "all", "they", "everything"}
CLAUSE_ENDS = {",", "and", "but", "while", "so", "where", "which"}
# A number or a size does not reach past these to a noun.
STOPS = CLAUSE_ENDS | {
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
REACH = 4  # words from a number to its noun, at most: "two very small cute pandas"


@dataclass(frozen=True)
class Mention:
    """A kind that is said to be there (or, `denied`, not to). None is what the text leaves open."""

    kind: str
    count: int | None
    many: bool | None  # plural or singular
    size: str | None
    denied: bool

    def holds(self, truth: Truth) -> bool:
        count = truth.counts.get(self.kind, 0)
        same_size = self.size is None or truth.sizes.get(self.kind) in (None, self.size)
        if self.denied:  # "no small panda" is true where the pandas are large
            return not (count and same_size)
        if self.count is None and self.many is not None:
            return same_size and (count > 1 if self.many else count == 1)
        return same_size and count > 0 and self.count in (None, count)


@dataclass(frozen=True)
class Size:
    """A size said of a kind, or (None) of everything."""

    kind: str | None
    size: str
    denied: bool

    def holds(self, truth: Truth) -> bool:
        kinds = truth.counts if self.kind is None else [self.kind]
        return all(truth.sizes.get(kind) in (None, self.size) for kind in kinds) != self.denied


@dataclass(frozen=True)
class Relation:
    """A relation said to hold. None is whoever the talk is about, and whoever else there is."""

    first: str | None
    relation: str
    second: str | None
    denied: bool

    def holds(self, truth: Truth, subject: str | None) -> bool:
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
    """What is true of a scene. relations: (kind, relation, kind); a size is None where nobody said it."""

    counts: dict[str, int]
    sizes: dict[str, str | None]
    relations: frozenset[tuple[str | None, str, str | None]]
    background: str

    @staticmethod
    def of(composition: Composition, scene: Scene | None = None) -> Truth:
        """What the composition says; with its scene, every relation and size that is to be seen there as well."""
        counts = {group.kind: group.count for group in composition.groups}
        sizes = {group.kind: group.size for group in composition.groups}
        relations: set[tuple[str | None, str, str | None]] = set()
        if composition.relation is not None:
            first, second = counts
            relations = {(first, composition.relation, second), (second, MIRROR[composition.relation], first)}
        if scene is not None:
            sizes |= {item.kind: item.size for item in scene.objects}
            relations |= set(to_be_seen(scene))
        return Truth(counts, sizes, frozenset(relations), composition.background)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def other(self, kind: str) -> str | None:
        """The other kind of the scene."""
        return next((name for name in self.counts if name != kind), None)


def to_be_seen(scene: Scene) -> Iterator[tuple[str, str, str]]:
    """Relations in which all objects of one kind stand to all of another."""
    for first in scene.objects:
        for second in scene.objects:
            these, those = ([item for item in scene.objects if item.kind == one.kind] for one in (first, second))
            for relation in RELATIONS:
                if first.kind != second.kind and all(stands(a, relation, b) for a in these for b in those):
                    yield first.kind, relation, second.kind


@dataclass
class Claims:
    """Everything a text says.

    polarity: a leading yes or no. loose: a negation denies nothing that is named ("there are none"). numbers: those
    that count no kind. totals: those that count objects.
    """

    polarity: bool | None = None
    loose: bool = False
    mentions: list[Mention] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)
    colours: list[tuple[str, bool]] = field(default_factory=list)  # of the background, and whether denied
    numbers: list[int] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)

    @property
    def kinds(self) -> set[str]:
        """Kinds said to be there."""
        return {mention.kind for mention in self.mentions if not mention.denied}

    def counts(self, kind: str) -> set[int]:
        """Numbers said of a kind."""
        said = (mention.count for mention in self.mentions if mention.kind == kind and not mention.denied)
        return {count for count in said if count is not None}

    def true_of(self, truth: Truth, subject: str | None = None) -> bool:
        """Whether every claim holds; `subject` is the kind the talk is about where the text does not name it."""
        return (
            all(mention.holds(truth) for mention in self.mentions)
            and all(size.holds(truth) for size in self.sizes)
            and all(relation.holds(truth, subject) for relation in self.relations)
            and all((colour == truth.background) != denied for colour, denied in self.colours)
            and all(number in (truth.total, *truth.counts.values()) for number in self.numbers)
            and all(number == truth.total for number in self.totals)
        )


def claims(text: str) -> Claims:
    """Read `text` sentence by sentence."""
    found = re.match(r"\W*(yes|yeah|yep|no|nope)\b", text.lower())
    read = Claims(polarity=None if found is None else found[1].startswith("y"))
    for sentence in re.split(r"[.!?;:\n]+", text.lower()):
        words = tokens(sentence)
        if words:
            Sentence(words).tell(read)
    return read


def tokens(sentence: str) -> list[str]:
    """Words and commas in the grammar's spelling, without a yes or no that answers by itself; isn't is "is not"."""
    plain = re.sub(r"n['\u2019]t\b", " not", sentence)
    plain = re.sub(r"['\u2019]\w+\b", "", plain)
    words = " ".join(re.findall(r"[^\W_]+|,", plain))
    for said, meant in PHRASES.items():
        words = re.sub(rf"\b{said}\b", meant, words)
    # "a cat is present" has no gift in it
    words = re.sub(r"(?<=\b(?:is|be)) present\b|(?<=\bare) present\b", "", words)
    read = [VARIANTS.get(word, word) for word in words.split()]
    alone = not any(word in KIND_OF or word in SIZE_OF for word in read[1:2])  # unlike in "no cat is there"
    return read[1:] if read and read[0] in ("yes", "yeah", "yep", "no", "nope") and alone else read


def number_of(word: str) -> int | None:
    return int(word) if word.isascii() and word.isdigit() else COUNTING.get(word)


class Sentence:
    """One sentence on its way to claims."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.kinds = [index for index, word in enumerate(words) if word in KIND_OF]
        self.modifiers = {index: self.modifying(index) for index in self.kinds}
        taken = {index for found in self.modifiers.values() for index in found}
        self.relations = [index for index, word in enumerate(words) if word in RELATION_OF and self.relates(index)]
        self.colours = [index for index, word in enumerate(words) if word in COLOURS and self.of_background(index)]
        self.sizes = [
            index for index, word in enumerate(words)
            if word in SIZE_OF and index not in taken and self.at(index - 1) in BEFORE_PREDICATES
        ]  # fmt: skip
        self.numbers = [
            index for index, word in enumerate(words)
            if number_of(word) is not None and index not in taken and self.counts_alone(index)
        ]  # fmt: skip
        self.denied, self.loose = self.denials()

    def at(self, index: int) -> str:
        return self.words[index] if 0 <= index < len(self.words) else ""

    def modifying(self, noun: int) -> list[int]:
        """Where the number and the size of a noun stand."""
        found = []
        for index in range(noun - 1, max(noun - 1 - REACH, -1), -1):
            if self.words[index] in STOPS or self.words[index] in KIND_OF:
                break
            if number_of(self.words[index]) is not None or self.words[index] in SIZE_OF:
                found.append(index)
        return found

    def relates(self, index: int) -> bool:
        """Whether a word like "left" or "over" is a relation here, and not part of "that's right" or "all over"."""
        word, before, after = self.words[index], self.at(index - 1), self.at(index + 1)
        if word in ("left", "right"):
            around = before in ("the", "its", "their", "on", "to", "at") or after in ("of", "side")
            return around or len(self.words) == 1
        return word not in ("over", "under") or self.object_of(index) is not None

    def of_background(self, index: int) -> bool:
        """Whether a colour is the background's, and not an object's."""
        if not self.kinds or self.at(index - 1) in ("on", "against") or self.at(index - 2) in ("on", "against"):
            return True
        ahead = self.words[index + 1 : index + 1 + REACH]
        behind = self.words[self.clause(index).start : index]
        near = ahead[: next((place for place, word in enumerate(ahead) if word in KIND_OF), None)]
        return "background" in near or "background" in behind

    def counts_alone(self, index: int) -> bool:
        """Whether a number without a noun counts; "one" may stand for a noun."""
        if self.words[index] in ONLY_BEFORE_NOUNS:
            return False
        return self.words[index] != "one" or self.at(index + 1) in {"", ",", "of"} | OBJECTS

    def clause(self, index: int) -> range:
        """The words between commas and conjunctions."""
        start = next((place + 1 for place in range(index - 1, -1, -1) if self.words[place] in CLAUSE_ENDS), 0)
        ends = (place for place in range(index + 1, len(self.words)) if self.words[place] in CLAUSE_ENDS)
        return range(start, next(ends, len(self.words)))

    def denials(self) -> tuple[set[int], bool]:
        """What negations deny: the next thing named in the clause and what "or" joins to it, else the one before.

        The second value is whether a negation denies nothing that is named.
        """
        marks = sorted({*self.kinds, *self.relations, *self.colours, *self.sizes})
        denied: set[int] = set()
        loose = False
        for index in (place for place, word in enumerate(self.words) if word in NEGATIONS):
            clause = self.clause(index)
            after = [mark for mark in marks if index < mark < clause.stop]
            before = [mark for mark in marks if clause.start <= mark < index]
            joined = [
                mark for last, mark in zip(after, after[1:], strict=False) if "or" in self.words[last:mark]
            ]  # fmt: skip
            denied |= {*after[:1], *joined} if after else set(before[-1:])
            loose |= not (after or before)
        return denied, loose

    def object_of(self, index: int) -> int | None:
        """The noun a relation's word leads to: "of the two small rockets"; "on the right a rocket" leads to none."""
        if self.words[index] in ("left", "right") and "of" not in self.words[index + 1 : index + 3]:
            return None
        for place in range(index + 1, min(index + 3 + REACH, len(self.words))):
            word = self.words[place]
            if word in KIND_OF:
                return place
            if word in STOPS - {"of", "the"} or word in RELATION_OF:
                return None
        return None

    def nearest(self, places: Iterable[int], *wanted: Callable[[int], bool]) -> str | None:
        """The kind at the first of `places` that meets the first of `wanted` which any place meets."""
        places = list(places)
        found = (place for meets in wanted for place in places if meets(place))
        return next((KIND_OF[self.words[place]] for place in found), None)

    def related(self, index: int) -> Relation:
        """Who stands how to whom; the clause is asked first, then the sentence, before the relation first."""
        aim = self.object_of(index)
        second = None if aim is None else KIND_OF[self.words[aim]]
        clause = self.clause(index)
        others = [place for place in self.kinds if place != aim and KIND_OF[self.words[place]] != second]
        others.sort(key=lambda place: abs(place - index))
        if self.at(index - 1) in ("its", "their"):  # "a dog, and on its left a cat"
            first = self.nearest(others, lambda place: place > index, lambda place: place < index)
        else:
            first = self.nearest(
                others, lambda place: clause.start <= place < index, lambda place: index < place < clause.stop,
                lambda place: place < index, lambda place: place > index,
            )  # fmt: skip
        return Relation(first, RELATION_OF[self.words[index]], second, index in self.denied)

    def sized(self, index: int) -> list[str | None]:
        """Of which kinds a predicate ("… are small") speaks; None is all."""
        before = [KIND_OF[self.words[place]] for place in self.kinds if place < index]
        if not before:
            return [None]
        return list(before) if EVERYONE & set(self.words[:index]) else [before[-1]]

    def tell(self, read: Claims) -> None:
        """Add what the sentence says."""
        for index in self.kinds:
            kind = KIND_OF[self.words[index]]
            words = [self.words[place] for place in self.modifiers[index]]
            count = next((number for word in words if (number := number_of(word)) is not None), None)
            size = next((SIZE_OF[word] for word in words if word in SIZE_OF), None)
            many = None if plural(kind) == kind else self.words[index] != kind
            denied = count == 0 or index in self.denied
            read.mentions.append(Mention(kind, count, many, size, denied))
        for index in self.sizes:
            size = SIZE_OF[self.words[index]]
            read.sizes += [Size(kind, size, index in self.denied) for kind in self.sized(index)]
        read.relations += [self.related(index) for index in self.relations]
        read.colours += [(self.words[index], index in self.denied) for index in self.colours]
        for index in self.numbers:
            number = number_of(self.words[index])
            assert number is not None
            (read.totals if self.at(index + 1) in OBJECTS else read.numbers).append(number)
        read.loose |= self.loose
