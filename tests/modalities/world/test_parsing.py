"""Captions read back to the composition they describe, and freely written prompts are understood or refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.scene import BACKGROUNDS, RELATIONS, Composition, Group, random_composition
from polydraft.modalities.world.words.captions import describe, vocabulary
from polydraft.modalities.world.words.parsing import VARIANTS, normalise, parse

seeds = st.integers(0, 2**32 - 1)
FROGS = Composition("blue", (Group("frog", 2),))
PANDA = Composition("yellow", (Group("panda"), Group("rocket")), "left")


def spoil(caption: str, rng: np.random.Generator) -> str:
    """The same caption as people type it: odd case, commas, digits."""
    digits = {"one": "1", "two": "2", "three": "3", "grey": "gray"}
    words = [digits.get(word, word) if rng.random() < 0.5 else word for word in caption.split()]
    words = [word.upper() if rng.random() < 0.3 else word for word in words]
    return "".join(word + (" ", ", ", "  ", ". ")[rng.choice(4, p=[0.7, 0.1, 0.1, 0.1])] for word in words)


@settings(max_examples=300)
@given(seeds, st.booleans())
def test_every_caption_reads_back(seed: int, held_out: bool) -> None:
    rng = np.random.default_rng(seed)
    composition = random_composition(rng, held_out)
    caption = describe(composition, rng)
    assert parse(caption).composition == composition
    assert parse(caption).ignored == ()
    assert normalise(caption) == (caption.split(), [])
    assert parse(spoil(caption, rng)).composition == composition


def test_every_kind_and_relation_reads_back() -> None:
    rng = np.random.default_rng(0)
    for kind in KINDS:
        for count in (1, 2, 3):
            composition = Composition("orange", (Group(kind, count),))
            assert parse(describe(composition, rng)).composition == composition
    for relation in RELATIONS:
        for background in BACKGROUNDS:
            composition = Composition(background, (Group("cat", 2, "small"), Group("bus", 1, "large")), relation)
            assert parse(describe(composition, rng)).composition == composition


@pytest.mark.parametrize(
    ("caption", "composition", "ignored"),
    [
        ("Two FROGS, on a blue background!", FROGS, ()),
        ("2 cute frogs (blue background)", FROGS, ("cute",)),
        ("two green frogs on a blue background", FROGS, ("green",)),
        ("Background: blue. Two frogs.", FROGS, ()),
        ("two frogs on blue", FROGS, ()),
        ("A panda is to the left of the rocket, yellow backdrop", PANDA, ("is",)),
        ("a panda left-of 1 rocket against yellow", PANDA, ()),
        ("fish on a navy background", Composition("navy", (Group("fish"),)), ()),
        ("3 tiny grape on a gray background", Composition("grey", (Group("grapes", 3, "small"),)), ()),
    ],
)
def test_freely_written(caption: str, composition: Composition, ignored: tuple[str, ...]) -> None:
    parsed = parse(caption)
    assert (parsed.composition, parsed.ignored) == (composition, ignored)


@pytest.mark.parametrize(
    "caption",
    [
        "",
        "a castle in the clouds",
        "two frogs",  # which background?
        "a blue frog",
        "frogs on a blue background",  # how many?
        "4 frogs on a blue background",
        "a cat and a dog on a blue background",  # standing how?
        "a cat and to its left a dog on a blue background",  # the dog's left or the cat's
        "a cat above a dog above a bee on a blue background",
        "two cats above two dogs on a blue background",  # four objects
        "a cat above a cat on a blue background",
        "a frog on a blue background with a pink background",
    ],
)
def test_what_the_grammar_cannot_say_is_refused(caption: str) -> None:
    assert parse(caption).composition is None


def test_normalise_tells_known_from_ignored() -> None:
    words, ignored = normalise("A fluffy Cat's 2 gray dogs, naïve & 7")
    assert words == ["a", "cat", "two", "grey", "dogs"]
    assert ignored == ["fluffy", "naïve", "7"]


def test_variants_lead_into_the_grammar() -> None:
    words = set(vocabulary())
    assert set(VARIANTS.values()) <= words
    assert not set(VARIANTS) & words


@given(st.text())
def test_any_text_is_read(caption: str) -> None:
    known, ignored = normalise(caption)
    assert set(known) <= set(vocabulary())
    assert not set(ignored) & set(vocabulary())
    parse(caption)
