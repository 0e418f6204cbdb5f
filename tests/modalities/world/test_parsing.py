"""Captions parse back to their composition, and free captions are parsed or have no composition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.scene import BACKGROUNDS, RELATIONS, Composition, ObjectGroup, random_composition
from polydraft.modalities.world.words.captions import caption_vocabulary, write_caption
from polydraft.modalities.world.words.parsing import VARIANTS, normalise_caption, parse_caption

seeds = st.integers(0, 2**32 - 1)
FROGS = Composition("blue", (ObjectGroup("frog", 2),))
PANDA = Composition("yellow", (ObjectGroup("panda"), ObjectGroup("rocket")), "left")


def spoil(caption: str, rng: np.random.Generator) -> str:
    """Return a caption with odd case, commas and digits."""
    digits = {"one": "1", "two": "2", "three": "3", "grey": "gray"}
    words = [digits.get(word, word) if rng.random() < 0.5 else word for word in caption.split()]
    words = [word.upper() if rng.random() < 0.3 else word for word in words]
    return "".join(word + (" ", ", ", "  ", ". ")[rng.choice(4, p=[0.7, 0.1, 0.1, 0.1])] for word in words)


@settings(max_examples=300)
@given(seeds, st.booleans())
def test_every_caption_round_trips(seed: int, held_out: bool) -> None:
    rng = np.random.default_rng(seed)
    composition = random_composition(rng, held_out)
    caption = write_caption(composition, rng)
    assert parse_caption(caption).composition == composition
    assert parse_caption(caption).ignored == ()
    assert normalise_caption(caption) == (caption.split(), [])
    assert parse_caption(spoil(caption, rng)).composition == composition


def test_every_kind_and_relation_round_trips() -> None:
    rng = np.random.default_rng(0)
    for kind in KINDS:
        for count in (1, 2, 3):
            composition = Composition("orange", (ObjectGroup(kind, count),))
            assert parse_caption(write_caption(composition, rng)).composition == composition
    for relation in RELATIONS:
        for background in BACKGROUNDS:
            groups = (ObjectGroup("cat", 2, "small"), ObjectGroup("bus", 1, "large"))
            composition = Composition(background, groups, relation)
            assert parse_caption(write_caption(composition, rng)).composition == composition


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
        ("fish on a navy background", Composition("navy", (ObjectGroup("fish"),)), ()),
        ("3 tiny grape on a gray background", Composition("grey", (ObjectGroup("grapes", 3, "small"),)), ()),
    ],
)
def test_free_captions_are_parsed(caption: str, composition: Composition, ignored: tuple[str, ...]) -> None:
    parsed = parse_caption(caption)
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
def test_captions_beyond_grammar_have_no_composition(caption: str) -> None:
    assert parse_caption(caption).composition is None


def test_normalise_separates_known_and_ignored_words() -> None:
    words, ignored = normalise_caption("A fluffy Cat's 2 gray dogs, naïve & 7")
    assert words == ["a", "cat", "two", "grey", "dogs"]
    assert ignored == ["fluffy", "naïve", "7"]


def test_variants_map_to_grammar_words() -> None:
    words = set(caption_vocabulary())
    assert set(VARIANTS.values()) <= words
    assert not set(VARIANTS) & words


@given(st.text())
def test_any_text_is_parsed(caption: str) -> None:
    known, ignored = normalise_caption(caption)
    assert set(known) <= set(caption_vocabulary())
    assert not set(ignored) & set(caption_vocabulary())
    parse_caption(caption)
