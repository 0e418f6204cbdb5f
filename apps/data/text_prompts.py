"""Prompts for benches of language models: six kinds of requests, half of them about a pasted text.

    text_prompts("chat", 12)            # questions of everyday life
    text_prompts("summary", 12)         # a dozen passages of 220 to 270 words, each to be summarised

Up to a dozen prompts of a kind have no text in common; later ones ask for the same passages in other words.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

import numpy as np

from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.errors import InvalidArgument

FILE = files("polydraft.assets") / "text" / "prompts.toml"
PASSAGE_KINDS = ("summary", "question", "correction")  # requests about a pasted text
KINDS = ("chat", "summary", "code", "question", "correction", "translation")
NUM_PROMPTS = 32  # of every kind
SUMMARY = ("Summarise the following text.", "What is the main point of this text?", "Write a title and an abstract.")
CORRECTION = (
    "Correct the spelling mistakes and return the whole text.", "Return this text without its spelling mistakes.",
    "Copy this text and correct all words that are misspelt.",
)  # fmt: skip
LANGUAGES = ("French", "Spanish", "German")
MISSPELT_EVERY = 12  # words
SHORTEST_MISSPELT = 5  # letters


def check_kinds(kinds: list[str]) -> None:
    """Raise InvalidArgument for an unknown kind, or for none."""
    for kind in kinds:
        if kind not in KINDS:
            suggestion = did_you_mean(kind, KINDS)
            raise InvalidArgument(f"There are no prompts of kind {kind!r:.60}{suggestion}; use {', '.join(KINDS)}.")
    if not kinds:
        raise InvalidArgument(f"There is no kind of prompt; use some of {', '.join(KINDS)}.")


def text_prompts(kind: str, count: int) -> list[str]:
    """Return the first `count` prompts of a kind.

    Args:
        kind (str): One of `KINDS`.
        count (int): Number of prompts.

    Raises:
        InvalidArgument: There is no such kind, or it has fewer prompts.
    """
    check_kinds([kind])
    if not 0 <= count <= NUM_PROMPTS:
        raise InvalidArgument(f"There are {NUM_PROMPTS} prompts of a kind, and not {count}; ask for fewer.")
    return all_prompts(kind)[:count]


@cache
def all_prompts(kind: str) -> list[str]:
    """Return all prompts of a kind: every text once, then every text in other words."""
    texts = prompt_file()
    if kind == "translation":
        return [f"Translate into {language}: {text}" for language in LANGUAGES for text in texts[kind]][:NUM_PROMPTS]
    if kind not in PASSAGE_KINDS:
        return list(texts[kind])[:NUM_PROMPTS]
    pairs = product(range(len(SUMMARY)), texts["passages"])
    return [passage_prompt(kind, passage, wording) for wording, passage in pairs][:NUM_PROMPTS]


def passage_prompt(kind: str, passage: dict[str, Any], wording: int) -> str:
    """Return the request of one of the `PASSAGE_KINDS` about a passage, in its first, second or third wording."""
    text = passage["text"]
    if kind == "summary":
        return f"{SUMMARY[wording]}\n\n{text}"
    if kind == "correction":
        return f"{CORRECTION[wording]}\n\n{misspell(text, seed=wording)}"
    return f"{text}\n\n{passage['questions'][wording]}"


def misspell(text: str, seed: int) -> str:
    """Return `text` with two letters swapped in one of a dozen words.

    Args:
        text (str): The text.
        seed (int): Which words, and which of their letters.
    """
    rng, words = np.random.default_rng(seed), text.split(" ")
    for first in range(0, len(words), MISSPELT_EVERY):
        places = range(first, min(first + MISSPELT_EVERY, len(words)))
        long = [place for place in places if len(words[place]) >= SHORTEST_MISSPELT and words[place].isalpha()]
        if long:
            place = long[rng.integers(len(long))]
            words[place] = swap_letters(words[place], int(rng.integers(1, len(words[place]) - 2)))
    return " ".join(words)


def swap_letters(word: str, index: int) -> str:
    """Return `word` with the letters at `index` and `index` + 1 in each other's place."""
    return word[:index] + word[index + 1] + word[index] + word[index + 2 :]


@cache
def prompt_file() -> dict[str, Any]:
    """Return the texts of the package, by kind."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))
