"""Reads prompts of the emoji world: the inverse of `captions.describe`, forgiving about how a prompt is written.

`parse("Two FROGS, on a blue background!")` is two frogs on blue; `parse("3 gray cats")` has no composition, for nothing
says which background; `normalise("a cute cat on a blue background")` ignores "cute".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

from polydraft.modalities.world.captions import COUNTS, RELATION_WORDS, SIZE_WORDS, plural, vocabulary
from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.scene import BACKGROUNDS, Composition, Group

# Other spellings, and words that can only mean one word of the grammar.
VARIANTS = {
    "1": "one", "2": "two", "3": "three", "gray": "grey", "backdrop": "background",
    "huge": "large", "giant": "large", "tiny": "small", "beneath": "below", "underneath": "below",
    "bunny": "rabbit", "bunnies": "rabbits", "kitten": "cat", "kittens": "cats", "puppy": "dog", "puppies": "dogs",
    "doughnut": "donut", "doughnuts": "donuts", "hamburger": "burger", "hamburgers": "burgers", "bike": "bicycle",
    "bikes": "bicycles", "present": "gift", "presents": "gifts", "diamond": "gem", "diamonds": "gems",
    "cactuses": "cacti", "octopi": "octopuses", "fishes": "fish", "cherry": "cherries", "grape": "grapes",
    "busses": "buses",
}  # fmt: skip

NUMBERS = {word: number for number, words in COUNTS.items() for word in words} | {"an": 1}
SIZE_OF = {word: size for size, words in SIZE_WORDS.items() for word in words}
KIND_OF = {plural(kind): kind for kind in KINDS} | {kind: kind for kind in KINDS}
RELATION_OF = {word: name for name, wordings in RELATION_WORDS.items() for word in (name, wordings[-1].split()[0])}
MAX_OBJECTS = 3  # a scene holds no more


@dataclass(frozen=True)
class Parsed:
    """What a prompt asks for (None if it does not say a whole composition) and the words that played no part."""

    composition: Composition | None
    ignored: tuple[str, ...]


@functools.cache
def known_words() -> frozenset[str]:
    return frozenset(vocabulary())


def read_words(caption: str) -> list[tuple[str, str | None]]:
    """Every word as written (lower case) with the grammar's word for it, None if the grammar has none."""
    written = re.findall(r"[^\W_]+", re.sub(r"['\u2019]s\b", "", caption.lower()))
    readings = [(word, VARIANTS.get(word, word)) for word in written]
    return [(word, known if known in known_words() else None) for word, known in readings]


def normalise(caption: str) -> tuple[list[str], list[str]]:
    """The words the grammar knows, in order and in its spelling, and the words it does not know, as written."""
    words = read_words(caption)
    return [known for _, known in words if known is not None], [word for word, known in words if known is None]


def parse(caption: str) -> Parsed:
    """The composition a freely written caption asks for.

    None where the caption leaves something open (no background, "cats" without a number), or goes beyond the grammar
    (more than three objects or two kinds, two relations).
    """
    pairs = read_words(caption)
    places = [place for place, (_, known) in enumerate(pairs) if known is not None]
    words = [known for _, known in pairs if known is not None]
    at = background_index(words)
    # any other colour is an adjective ("a blue cat"), which the world cannot draw
    adjectives = {places[index] for index, word in enumerate(words) if word in BACKGROUNDS and index != at}
    ignored = tuple(word for place, (word, known) in enumerate(pairs) if known is None or place in adjectives)
    composition = None if at is None else compose(words, at)
    return Parsed(composition, ignored)


def background_index(words: list[str]) -> int | None:
    """Which word names the background: the colour before "background", else after it, else after "on" or "against"."""
    colours = [index for index, word in enumerate(words) if word in BACKGROUNDS]

    def before(index: int) -> str:
        return words[index - 1] if index > 0 else ""

    def beyond_article(index: int) -> str:
        return before(index - 1) if before(index) in ("a", "an", "the") else before(index)

    rules: tuple[Callable[[int], bool], ...] = (
        lambda index: words[index + 1 : index + 2] == ["background"],
        lambda index: before(index) == "background",
        lambda index: beyond_article(index) in ("on", "against"),
    )
    for rule in rules:
        found = [index for index in colours if rule(index)]
        if found:
            # two different backgrounds leave it open
            return found[0] if len({words[index] for index in found}) == 1 else None
    return None


def compose(words: list[str], background: int) -> Composition | None:
    """Groups and relation read from left to right; `background` is the index of the background's colour."""
    groups: list[Group] = []
    relation: str | None = None
    count: int | None = None
    size: str | None = None
    for index, word in enumerate(words):
        if index == background:
            count = size = None  # "a blue background": the article was not a count
        elif word in NUMBERS:
            count = NUMBERS[word]
        elif word in SIZE_OF:
            size = SIZE_OF[word]
        elif word in KIND_OF:
            kind = KIND_OF[word]
            if count is None and word != kind:
                return None
            groups.append(Group(kind, count or 1, size))
            count = size = None
        elif word in RELATION_OF:
            # "to its left a dog" has no "of", and would stand the other way round
            if relation or len(groups) != 1 or (word in ("left", "right") and words[index + 1 : index + 2] != ["of"]):
                return None
            relation = RELATION_OF[word]
    return checked(Composition(words[background], tuple(groups), relation))


def checked(composition: Composition) -> Composition | None:
    """The composition if the grammar has it: one group, or two different kinds in a relation; at most three objects."""
    groups = composition.groups
    whole = len(groups) == (1 if composition.relation is None else 2)
    different = len({group.kind for group in groups}) == len(groups)
    few = sum(group.count for group in groups) <= MAX_OBJECTS
    return composition if whole and different and few else None
