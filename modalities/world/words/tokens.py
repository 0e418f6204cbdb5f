"""Tokenizer of prompts: words and emoji, each with the caption grammar's word for it.

    [token.word for token in tokenize_prompt("TWO 🐸 on a navy-blue backdrop")]    # two frog on a navy background

The tables list words that can only mean one word of the grammar. They are wider than `parsing.VARIANTS`, which also
reads answers about images, where a boat is not a sailboat.
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
    # Phrases that contain a word of the grammar and mean something else.
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
# Variation selectors and skin tones, which the glyphs do not have.
EMOJI_MODIFIERS = "\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff"
TOKEN_PATTERN = re.compile(
    rf"[^\W_]+|[\U0001f1e6-\U0001f1ff]{{2}}|[{SYMBOLS}][{EMOJI_MODIFIERS}]*(?:\u200d[{SYMBOLS}][{EMOJI_MODIFIERS}]*)*|[&+]"
)
TIMES_SUFFIX = re.compile(r"(?<=\d)x$")  # "2x"
CONTRACTIONS = re.compile(r"(?<=\w)['\u2019](?:s|d|m|ll|re|ve)\b", re.IGNORECASE)


@dataclass
class PromptToken:
    """Word or emoji of a prompt."""

    written: str  # in lower case
    word: str  # the grammar's word, if it has one
    emoji: bool = False
    used: bool = False  # whether the caption expresses it


def tokenize_prompt(prompt: str, settings: Collection[str] = ()) -> list[PromptToken]:
    """Split a prompt into words and emoji; a phrase that is one word of the grammar is one token.

    Args:
        prompt (str): a free prompt.
        settings (Collection[str]): the settings whose words belong to the grammar.
    """
    text = CONTRACTIONS.sub("", unicodedata.normalize("NFKC", prompt))
    words = [match.lower() for match in TOKEN_PATTERN.findall(text)]
    tokens, index = [], 0
    while index < len(words):
        lengths = range(LONGEST_PHRASE, 1, -1)
        length = next((length for length in lengths if " ".join(words[index : index + length]) in PHRASES), 1)
        tokens.append(make_token(" ".join(words[index : index + length]), settings))
        index += length
    return tokens


def make_token(written: str, settings: Collection[str]) -> PromptToken:
    """Build the token of a word, phrase or emoji."""
    plain = re.sub(f"[{EMOJI_MODIFIERS}]", "", written)
    if plain in EMOJI:
        return PromptToken(written, EMOJI[plain], emoji=True)
    grammar, word = known_words(tuple(settings)), TIMES_SUFFIX.sub("", plain)
    for table in (PHRASES, SYNONYMS, VARIANTS, SETTING_VARIANTS if settings else {}):
        word = word if word in grammar else table.get(word, word)
    return PromptToken(written, word)
