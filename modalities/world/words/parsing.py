"""Reads prompts of the emoji world: the inverse of `captions.describe`, forgiving about how a prompt is written.

`parse("Two FROGS, on a blue background!")` is two frogs on blue; `parse("3 gray cats")` has no composition, for nothing
says which background; `normalise("a cute cat on a blue background")` ignores "cute". Of a world with settings, their
wordings are looked for first ("under the stars" is no relation and no star), then words that name one anyhow.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import BACKGROUNDS, Composition, Group
from polydraft.modalities.world.words.captions import COUNTS, RELATION_WORDS, SIZE_WORDS, plural, vocabulary

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
# Words that mean a setting wherever they stand; of two settings' in one prompt the earlier here is meant.
NAMING = {
    "night": "night", "starry": "night", "sunset": "sunset", "dusk": "sunset", "evening": "sunset",
    "brick": "brick", "bricks": "brick", "leaves": "leaves", "autumn": "leaves", "grass": "grass", "lawn": "grass",
    "snow": "snow", "snowy": "snow", "beach": "sea", "seaside": "sea", "sea": "sea", "sand": "sand", "desert": "sand",
    "wooden": "wood", "wood": "wood", "table": "wood", "flagstones": "stone", "stone": "stone", "water": "water",
    "clouds": "sky", "cloudy": "sky", "sky": "sky",
}  # fmt: skip
ARTICLES = ("a", "an", "the")
LEADING = ("under", "over", "above", "below")  # relations, but not where they lead to a setting
SETTING_VARIANTS = {
    "meadow": "grass", "underwater": "water", "cloud": "clouds", "nighttime": "night", "boards": "wooden",
    "seashore": "seaside", "shore": "seaside", "stony": "stone", "sandy": "sand", "cobblestones": "flagstones",
    "ocean": "sea", "fall": "autumn", "dunes": "desert",
}  # fmt: skip


@dataclass(frozen=True)
class Parsed:
    """What a prompt asks for (None if it does not say a whole composition) and the words that played no part."""

    composition: Composition | None
    ignored: tuple[str, ...]


@functools.cache
def known_words(settings: tuple[str, ...] = ()) -> frozenset[str]:
    return frozenset(vocabulary(settings))


def read_words(caption: str, settings: Collection[str] = ()) -> list[tuple[str, str | None]]:
    """Every word as written (lower case) with the grammar's word for it, None if the grammar has none."""
    grammar, variants = known_words(tuple(settings)), VARIANTS | (SETTING_VARIANTS if settings else {})
    written = re.findall(r"[^\W_]+", re.sub(r"['\u2019]s\b", "", caption.lower()))
    readings = [(word, word if word in grammar else variants.get(word, word)) for word in written]
    return [(word, known if known in grammar else None) for word, known in readings]


def normalise(caption: str, settings: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """The words the grammar knows, in order and in its spelling, and the words it does not know, as written."""
    words = read_words(caption, settings)
    return [known for _, known in words if known is not None], [word for word, known in words if known is None]


def parse(caption: str, settings: Collection[str] = ()) -> Parsed:
    """The composition a freely written caption asks for.

    None where the caption leaves something open (no background, "cats" without a number), or goes beyond the grammar
    (more than three objects or two kinds, two relations).
    """
    pairs = read_words(caption, settings)
    places = [place for place, (_, known) in enumerate(pairs) if known is not None]
    words = [known for _, known in pairs if known is not None]
    setting, said = setting_of(words, settings)
    # "on the green grass" has no green background
    at = background_index(words) if setting is None or "background" in words else None
    # any other colour is an adjective ("a blue cat"), which the world cannot draw
    adjectives = {places[index] for index, word in enumerate(words) if word in BACKGROUNDS and index != at}
    ignored = tuple(word for place, (word, known) in enumerate(pairs) if known is None or place in adjectives)
    if setting is None:
        return Parsed(None if at is None else compose(words, at, words[at]), ignored)
    if at is not None:  # "on a blue background in the snow"
        return Parsed(None, ignored)
    rest = [word for index, word in enumerate(words) if index not in said]
    return Parsed(compose(rest, None, setting), ignored)


def setting_of(words: list[str], settings: Collection[str]) -> tuple[str | None, range]:
    """The setting that is named, and where: a wording of the grammar, the longest first; else a word that names one."""
    places = [index for index, word in enumerate(words) if word not in ARTICLES]
    phrases = [
        ([word for word in wording.split() if word not in ARTICLES], setting)
        for setting in settings for wording in SETTINGS[setting].wordings
    ]  # fmt: skip
    for phrase, setting in sorted(phrases, key=lambda pair: -len(pair[0])):
        for first in range(len(places) - len(phrase) + 1):
            here = places[first : first + len(phrase)]
            if [words[index] for index in here] == phrase and len(phrase) > 1:
                return setting, range(here[0], here[-1] + 1)
    for word, setting in NAMING.items():
        if word in words and setting in settings:
            start = at = words.index(word)
            while start and words[start - 1] in ARTICLES:
                start -= 1
            # "over the sea": what leads to it is no relation between things
            return setting, range(start - (start > 0 and words[start - 1] in LEADING), at + 1)
    return None, range(0)


def background_index(words: list[str]) -> int | None:
    """Which word names the background; None where two different colours do."""
    found = background_indices(words)
    return found[0] if len({words[index] for index in found}) == 1 else None


def background_indices(words: list[str]) -> list[int]:
    """Return the colours before "background", else those after it, else those after "on" or "against"."""
    colours = [index for index, word in enumerate(words) if word in BACKGROUNDS]

    def before(index: int) -> str:
        return words[index - 1] if index > 0 else ""

    def beyond_article(index: int) -> str:
        return before(index - 1) if before(index) in ("a", "an", "the") else before(index)

    def of_thing(index: int) -> bool:
        return any(word in KIND_OF or word in SIZE_OF for word in words[index + 1 : index + 2])

    rules: tuple[Callable[[int], bool], ...] = (
        lambda index: words[index + 1 : index + 2] == ["background"],
        lambda index: before(index) == "background",
        lambda index: beyond_article(index) in ("on", "against") and not of_thing(index),  # unlike "on a blue cat"
    )
    for rule in rules:
        if found := [index for index in colours if rule(index)]:
            return found
    return []


def compose(words: list[str], at: int | None, background: str) -> Composition | None:
    """Groups and relation read from left to right; `at` is the index of the background's colour, if it is one."""
    groups: list[Group] = []
    relation: str | None = None
    count: int | None = None
    size: str | None = None
    for index, word in enumerate(words):
        if index == at:
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
    return checked(Composition(background, tuple(groups), relation))


def checked(composition: Composition) -> Composition | None:
    """The composition if the grammar has it: one group, or two different kinds in a relation; at most three objects."""
    groups = composition.groups
    whole = len(groups) == (1 if composition.relation is None else 2)
    different = len({group.kind for group in groups}) == len(groups)
    few = sum(group.count for group in groups) <= MAX_OBJECTS
    return composition if whole and different and few else None
