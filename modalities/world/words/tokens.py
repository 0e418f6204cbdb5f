"""Words and emoji of a prompt, each with the caption grammar's word for it.

    [token.word for token in tokens_of("TWO 🐸 on a navy-blue backdrop")]    # two frog on a navy background

Tables hold what can only mean one word of the grammar. They are wider than `parsing.VARIANTS`, which also reads answers
about pictures, where a boat is not a sailboat.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass

from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.words.parsing import SETTING_VARIANTS, VARIANTS, known_words

LONGEST_PHRASE = 3  # words
PHRASES = {
    "navy blue": "navy", "dark blue": "navy", "light blue": "blue", "sky blue": "blue", "panda bear": "panda",
    "koala bear": "koala", "top hat": "hat", "soccer ball": "ball", "birthday cake": "cake", "snow man": "snowman",
    "sailing boat": "sailboat", "sail boat": "sailboat", "starry night": "night", "on top of": "above",
    "a pair of": "two", "a couple of": "two", "a few": "three",
    # what would be taken for something else
    "hot dog": "hot dog", "hot dogs": "hot dogs", "sea lion": "sea lion", "gummy bear": "gummy bear",
}  # fmt: skip
SYNONYMS = {
    "&": "and", "+": "and",
    "another": "one", "single": "one", "pair": "two", "couple": "two", "duo": "two", "trio": "three", "few": "three",
    "several": "three", "enormous": "large", "gigantic": "large", "massive": "large", "miniature": "small",
    "violet": "purple", "atop": "above", "kitty": "cat", "kitties": "cats", "pup": "dog", "pups": "dogs",
    "doggy": "dog", "piglet": "pig", "piglets": "pigs", "hen": "chicken", "hens": "chickens", "rooster": "chicken",
    "roosters": "chickens", "bumblebee": "bee", "bumblebees": "bees", "honeybee": "bee", "honeybees": "bees",
    "tortoise": "turtle", "tortoises": "turtles", "automobile": "car", "automobiles": "cars", "spaceship": "rocket",
    "spaceships": "rockets", "locomotive": "train", "locomotives": "trains", "boat": "sailboat", "boats": "sailboats",
    "flame": "fire", "flames": "fire", "campfire": "fire", "bonfire": "fire", "cottage": "house",
    "cottages": "houses", "jewel": "gem", "jewels": "gems", "toadstool": "mushroom", "toadstools": "mushrooms",
    "cheeseburger": "burger", "cheeseburgers": "burgers",
}  # fmt: skip
EMOJI = {character: kind for kind, character in KINDS.items()} | {
    "🐈": "cat", "😺": "cat", "🐕": "dog", "🐩": "dog", "🐇": "rabbit", "🐒": "monkey", "🐅": "tiger", "🐄": "cow",
    "🐖": "pig", "🐓": "chicken", "🐠": "fish", "🐋": "whale", "🍏": "apple", "🍰": "cake", "🚙": "car", "🚍": "bus",
    "🚂": "train", "🚄": "train", "🚅": "train", "🛳": "ship", "🏡": "house", "🏕": "tent", "🌲": "tree", "🌟": "star",
    "🌛": "moon", "🌜": "moon", "🌕": "moon", "☀": "sun", "☃": "snowman", "☂": "umbrella", "☔": "umbrella",
    "🗝": "key",
}  # fmt: skip
SYMBOLS = "\u2190-\u21ff\u2300-\u23ff\u2500-\u27bf\u2900-\u297f\u2b00-\u2bff\u3030\u303d\U0001f000-\U0001faff"
STYLES = "\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff"  # variation selectors and skin tones: no picture here has them
TOKEN = re.compile(
    rf"[^\W_]+|[\U0001f1e6-\U0001f1ff]{{2}}|[{SYMBOLS}][{STYLES}]*(?:\u200d[{SYMBOLS}][{STYLES}]*)*|[&+]"
)
TIMES = re.compile(r"(?<=\d)x$")  # "2x"
ENDINGS = re.compile(r"(?<=\w)['\u2019](?:s|d|m|ll|re|ve)\b", re.IGNORECASE)


@dataclass
class Token:
    """A word or an emoji of a prompt."""

    written: str  # lower case
    word: str  # the grammar's, if it has one
    emoji: bool = False
    used: bool = False  # whether the caption says it


def tokens_of(prompt: str, settings: Collection[str] = ()) -> list[Token]:
    """Return words and emoji of a prompt in order; a phrase that is one word of the grammar is one token."""
    text = ENDINGS.sub("", unicodedata.normalize("NFKC", prompt))
    words = [found.lower() for found in TOKEN.findall(text)]
    tokens, index = [], 0
    while index < len(words):
        lengths = range(LONGEST_PHRASE, 1, -1)
        length = next((length for length in lengths if " ".join(words[index : index + length]) in PHRASES), 1)
        tokens.append(token_of(" ".join(words[index : index + length]), settings))
        index += length
    return tokens


def token_of(written: str, settings: Collection[str]) -> Token:
    """Return one word, phrase or emoji with the grammar's word for it."""
    plain = re.sub(f"[{STYLES}]", "", written)
    if plain in EMOJI:
        return Token(written, EMOJI[plain], emoji=True)
    grammar, word = known_words(tuple(settings)), TIMES.sub("", plain)
    for table in (PHRASES, SYNONYMS, VARIANTS, SETTING_VARIANTS if settings else {}):
        word = word if word in grammar else table.get(word, word)
    return Token(written, word)
