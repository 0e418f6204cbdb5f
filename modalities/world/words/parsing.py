"""Parser of captions of the emoji dataset: the inverse of `captions.write_caption`, tolerant of free wording.

`parse_caption("Two FROGS, on a blue background!")` is two frogs on blue; `parse_caption("3 gray cats")` has no
composition, since it names no background; `normalise_caption("a cute cat on a blue background")` ignores "cute". With
settings, their wordings are searched first ("under the stars" is no relation and no star), then words that name one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import BACKGROUNDS, Composition, ObjectGroup
from polydraft.modalities.world.words.captions import COUNTS, RELATION_WORDS, SIZE_WORDS, caption_vocabulary, pluralise

# Other spellings and synonyms that can only mean one word of the grammar.
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
KIND_OF = {pluralise(kind): kind for kind in KINDS} | {kind: kind for kind in KINDS}
RELATION_OF = {word: name for name, wordings in RELATION_WORDS.items() for word in (name, wordings[-1].split()[0])}
MAX_OBJECTS = 3  # in a scene
# Words that name a setting anywhere in a prompt; if a prompt names two settings, the first of this table is used.
SETTING_KEYWORDS = {
    "night": "night", "starry": "night", "sunset": "sunset", "dusk": "sunset", "evening": "sunset",
    "brick": "brick", "bricks": "brick", "leaves": "leaves", "autumn": "leaves", "grass": "grass", "lawn": "grass",
    "snow": "snow", "snowy": "snow", "beach": "sea", "seaside": "sea", "sea": "sea", "sand": "sand", "desert": "sand",
    "wooden": "wood", "wood": "wood", "table": "wood", "flagstones": "stone", "stone": "stone", "water": "water",
    "clouds": "sky", "cloudy": "sky", "sky": "sky",
}  # fmt: skip
ARTICLES = ("a", "an", "the")
LEADING_RELATIONS = ("under", "over", "above", "below")  # no relations where they lead to a setting
SETTING_VARIANTS = {
    "meadow": "grass", "underwater": "water", "cloud": "clouds", "nighttime": "night", "boards": "wooden",
    "seashore": "seaside", "shore": "seaside", "stony": "stone", "sandy": "sand", "cobblestones": "flagstones",
    "ocean": "sea", "fall": "autumn", "dunes": "desert",
}  # fmt: skip


@dataclass(frozen=True)
class ParsedCaption:
    """Result of parsing a caption."""

    composition: Composition | None  # None if the caption is no complete composition
    ignored: tuple[str, ...]  # words without effect


@functools.cache
def known_words(settings: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the words of the grammar with these settings."""
    return frozenset(caption_vocabulary(settings))


def split_words(caption: str, settings: Collection[str] = ()) -> list[tuple[str, str | None]]:
    """Split a caption into lower-case words, each with the grammar's word for it, None if it has none."""
    grammar, variants = known_words(tuple(settings)), VARIANTS | (SETTING_VARIANTS if settings else {})
    written = re.findall(r"[^\W_]+", re.sub(r"['\u2019]s\b", "", caption.lower()))
    readings = [(word, word if word in grammar else variants.get(word, word)) for word in written]
    return [(word, known if known in grammar else None) for word, known in readings]


def normalise_caption(caption: str, settings: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Return the known words of a caption in the spelling of the grammar, and the unknown words as written."""
    words = split_words(caption, settings)
    return [known for _, known in words if known is not None], [word for word, known in words if known is None]


def parse_caption(caption: str, settings: Collection[str] = ()) -> ParsedCaption:
    """Parse a freely written caption.

    There is no composition if the caption leaves something open (no background, "cats" without a number) or goes beyond
    the grammar (more than three objects or two kinds, two relations).

    Args:
        caption (str): the caption.
        settings (Collection[str]): the settings that it may name.
    """
    pairs = split_words(caption, settings)
    indices = [index for index, (_, known) in enumerate(pairs) if known is not None]
    words = [known for _, known in pairs if known is not None]
    setting, setting_range = find_setting(words, settings)
    # "on the green grass" has no green background.
    colour_index = background_index(words) if setting is None or "background" in words else None
    # Any other colour is an adjective ("a blue cat"), which scenes cannot show.
    adjectives = {indices[index] for index, word in enumerate(words) if word in BACKGROUNDS and index != colour_index}
    ignored = tuple(word for index, (word, known) in enumerate(pairs) if known is None or index in adjectives)
    if setting is None:
        if colour_index is None:
            return ParsedCaption(None, ignored)
        return ParsedCaption(build_composition(words, colour_index, words[colour_index]), ignored)
    if colour_index is not None:  # "on a blue background in the snow"
        return ParsedCaption(None, ignored)
    rest = [word for index, word in enumerate(words) if index not in setting_range]
    return ParsedCaption(build_composition(rest, None, setting), ignored)


def find_setting(words: list[str], settings: Collection[str]) -> tuple[str | None, range]:
    """Return the setting that is named, and the range of its words.

    Wordings of the grammar are searched first, the longest before shorter ones, then words that name a setting.
    """
    content = [index for index, word in enumerate(words) if word not in ARTICLES]
    phrases = [
        ([word for word in wording.split() if word not in ARTICLES], setting)
        for setting in settings for wording in SETTINGS[setting].wordings
    ]  # fmt: skip
    for phrase, setting in sorted(phrases, key=lambda pair: -len(pair[0])):
        for first in range(len(content) - len(phrase) + 1):
            window = content[first : first + len(phrase)]
            if [words[index] for index in window] == phrase and len(phrase) > 1:
                return setting, range(window[0], window[-1] + 1)
    for word, setting in SETTING_KEYWORDS.items():
        if word in words and setting in settings:
            start = index = words.index(word)
            while start and words[start - 1] in ARTICLES:
                start -= 1
            # In "over the sea", the preposition is no relation between objects.
            return setting, range(start - (start > 0 and words[start - 1] in LEADING_RELATIONS), index + 1)
    return None, range(0)


def background_index(words: list[str]) -> int | None:
    """Return the index of the colour of the background; None without one, or if two different colours name it."""
    indices = background_indices(words)
    return indices[0] if len({words[index] for index in indices}) == 1 else None


def background_indices(words: list[str]) -> list[int]:
    """Return the indices of colours before "background", else after it, else after "on" or "against"."""
    colours = [index for index, word in enumerate(words) if word in BACKGROUNDS]

    def before(index: int) -> str:
        return words[index - 1] if index > 0 else ""

    def beyond_article(index: int) -> str:
        return before(index - 1) if before(index) in ("a", "an", "the") else before(index)

    def is_adjective(index: int) -> bool:
        return any(word in KIND_OF or word in SIZE_OF for word in words[index + 1 : index + 2])

    rules: tuple[Callable[[int], bool], ...] = (
        lambda index: words[index + 1 : index + 2] == ["background"],
        lambda index: before(index) == "background",
        lambda index: beyond_article(index) in ("on", "against") and not is_adjective(index),  # unlike "on a blue cat"
    )
    for rule in rules:
        if indices := [index for index in colours if rule(index)]:
            return indices
    return []


def build_composition(words: list[str], colour_index: int | None, background: str) -> Composition | None:
    """Build a composition from words, read from left to right.

    Args:
        words (list[str]): words of the grammar.
        colour_index (int | None): the index of the background's colour, if it is one.
        background (str): the background.
    """
    groups: list[ObjectGroup] = []
    relation: str | None = None
    count: int | None = None
    size: str | None = None
    for index, word in enumerate(words):
        if index == colour_index:
            count = size = None  # "a blue background": the article was not a count
        elif word in NUMBERS:
            count = NUMBERS[word]
        elif word in SIZE_OF:
            size = SIZE_OF[word]
        elif word in KIND_OF:
            kind = KIND_OF[word]
            if count is None and word != kind:
                return None
            groups.append(ObjectGroup(kind, count or 1, size))
            count = size = None
        elif word in RELATION_OF:
            # "to its left a dog" has no "of", and would be the other way round.
            if relation or len(groups) != 1 or (word in ("left", "right") and words[index + 1 : index + 2] != ["of"]):
                return None
            relation = RELATION_OF[word]
    return valid_composition(Composition(background, tuple(groups), relation))


def valid_composition(composition: Composition) -> Composition | None:
    """Return a composition if it is one of the grammar, else None.

    It must have one group, or two groups of different kinds in a relation, and at most three objects.
    """
    groups = composition.groups
    is_complete = len(groups) == (1 if composition.relation is None else 2)
    is_distinct = len({group.kind for group in groups}) == len(groups)
    fits = sum(group.count for group in groups) <= MAX_OBJECTS
    return composition if is_complete and is_distinct and fits else None
