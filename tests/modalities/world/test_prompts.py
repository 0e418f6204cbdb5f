"""Free prompts become captions of the grammar, and words without effect are reported."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.words.captions import caption_vocabulary, write_caption
from polydraft.modalities.world.words.parsing import VARIANTS
from polydraft.modalities.world.words.prompts import FRAMING_WORDS, LARGE_NUMBERS
from polydraft.modalities.world.words.tokens import EMOJI, PHRASES, SYNONYMS
from polydraft.modalities.world.worlds import EVERYTHING, FLAT, TEXTURED, WORLDS, World

PHRASINGS = (
    "{}", "an image of {}", "A photo of {}.", "Show me a picture of {}", "Please draw {}!", "can you make {} for me?",
    "I'd like to see an illustration: {}", "GENERATE AN IMAGE OF {}", "there is {} in this picture",
)  # fmt: skip
worlds = st.sampled_from(list(WORLDS.values()))
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=150, deadline=None)
@given(seeds, worlds, st.booleans(), st.sampled_from(PHRASINGS))
def test_captions_in_any_framing_are_unchanged(seed: int, world: World, held_out: bool, phrasing: str) -> None:
    rng = np.random.default_rng(seed)
    caption = write_caption(world.random_composition(rng, held_out), rng)
    found = world.rewrite_prompt(phrasing.format(caption))
    assert (found.caption, found.ignored) == (caption, ())


DRAWN_WHOLE = {
    # framed, spelt, punctuated
    "Two FROGS, on a blue background!": "two frogs on a blue background",
    "Draw me 3 big apples on a gray backdrop please": "three big apples on a grey background",
    "I'd like two frogs. The background should be blue, please.": "two frogs on a blue background",
    "Background: blue. Two frogs.": "blue background with two frogs",
    "could you make a picture with a panda on light blue?": "a panda on a blue background",
    "2x cats on a plain dark blue background": "two cats on a navy background",
    # ways to say kinds, numbers and sizes
    "a couple of kittens on a pink background": "two cats on a pink background",
    "a few bees against grey": "three bees against a grey background",
    "panda bear in the snow": "a panda in the snow",
    "cats on a green background": "two cats on a green background",
    "fish on a green background": "a fish on a green background",
    "A cat. The cat is small. It is on a purple background.": "a small cat on a purple background",
    "two frogs that are tiny on a beach": "two small frogs on the beach",
    "no dogs, just one cat on sand": "one cat on sand",
    "a boat on the ocean": "a sailboat by the sea",
    # ways to say how things stand
    "a panda is to the left of the rocket, yellow backdrop": "a panda to the left of a rocket on a yellow background",
    "a cat left-of 1 dog on grass": "a cat left of one dog on grass",
    "the moon on top of a house at night": "a moon above a house at night",
    "to the left of a dog there is a cat, pink backdrop": "a cat to the left of a dog on a pink background",
    "a cat with a dog to its left on pink": "a dog to the left of a cat on a pink background",
    "a cat, and above it a star, on navy": "a star above a cat on a navy background",
    "a cat on the left and a dog on the right on grass": "a cat to the left of a dog on grass",
    "on the right a cat, on the left a dog, on grass": "a cat to the right of a dog on grass",
    "a cat at the top, a dog at the bottom, on grass": "a cat above a dog on grass",
    # emoji
    "🐱 on a blue background": "a cat on a blue background",
    "🐸🐸 on blue": "two frogs on a blue background",
    "two 🐸🐸 on blue": "two frogs on a blue background",
    "a 🐼 above a ⭐️ on a navy background": "a panda above a star on a navy background",
    "3️⃣ ☀️ on a pink background": "three suns on a pink background",
    # what is left open
    "a cat": "a cat on a blue background",
    "🐱🐶": "a cat to the left of a dog on a blue background",
    "a cat, a dog": "a cat to the left of a dog on a blue background",
}


@pytest.mark.parametrize("prompt", DRAWN_WHOLE)
def test_expressible_prompt_is_rewritten_completely(prompt: str) -> None:
    found = EVERYTHING.rewrite_prompt(prompt)
    assert (found.caption, found.ignored) == (DRAWN_WHOLE[prompt], ())


DRAWN_IN_PART = {
    "a blue cat": ("a cat on a blue background", "blue"),
    "two green frogs on a blue background": ("two frogs on a blue background", "green"),
    "a bee on a blue cat": ("a bee above a cat on a blue background", "on blue"),
    "a fish on a blue and white background": ("a fish on a blue background", "white"),
    "a frog on a blue background with a pink background": ("a frog on a blue background", "pink"),
    "4 cats on a blue background": ("three cats on a blue background", "4"),
    "two hundred pandas": ("three pandas on a blue background", "two hundred"),
    "many dogs in the snow": ("three dogs in the snow", "many"),
    "cats and dogs": ("two cats to the left of a dog on a blue background", "and dogs"),
    "three cats above two dogs on grass": ("two cats above a dog on grass", "three two"),
    "🐝🐝🐝🐝": ("three bees on a blue background", "🐝"),
    "a cat, a dog and a fox on grass": ("a cat to the left of a dog on grass", "fox"),
    "a cat above a dog to the left of a fox on grass": ("a cat above a dog on grass", "left fox"),
    "a cat and a dog on grass": ("a cat to the left of a dog on grass", "and"),
    "a cat next to a dog on grass": ("a cat to the left of a dog on grass", "next to"),
    "a cat between two dogs": ("a cat to the left of two dogs on a blue background", "between"),
    "a cat wearing a top hat": ("a cat to the left of a hat on a blue background", "wearing"),
    "a cat above a cat on grass": ("two cats on grass", "above"),
    "a small cat and a large cat on sand": ("two small cats on sand", "large"),
    "a cat or a dog": ("a cat on a blue background", "or dog"),
    "a cat on the left": ("a cat on a blue background", "left"),
    "a dragon and a cat in the snow": ("a cat in the snow", "dragon"),
    "🐉 and 🐱 ❤️": ("a cat on a blue background", "🐉 ❤️"),
    "👨‍👩‍👧 🇩🇪 cat": ("a cat on a blue background", "👨‍👩‍👧 🇩🇪"),
    "a fluffy cat, watercolour, 4k": ("a cat on a blue background", "fluffy watercolour 4k"),
    "a hot dog and a cat": ("a cat on a blue background", "hot dog"),
}


@pytest.mark.parametrize("prompt", DRAWN_IN_PART)
def test_excessive_prompt_is_rewritten_partly_and_reported(prompt: str) -> None:
    found = EVERYTHING.rewrite_prompt(prompt)
    assert (found.caption, " ".join(found.ignored)) == DRAWN_IN_PART[prompt]


NOTHING = ("a dragon", "a dragon on a blue background", "snow", "an orange", "zwei Katzen", "🐉")


@pytest.mark.parametrize("prompt", NOTHING)
def test_prompt_without_known_kinds_has_no_caption(prompt: str) -> None:
    assert EVERYTHING.rewrite_prompt(prompt).caption == ""


def test_backgrounds_of_other_variant_are_reported() -> None:
    assert FLAT.rewrite_prompt("a cat in the snow").ignored == ("snow",)
    found = TEXTURED.rewrite_prompt("a cat on a blue background")
    assert (found.caption, found.ignored) == ("a cat on grass", ("blue",))


def test_tables_map_to_grammar_words() -> None:
    grammar = {*caption_vocabulary(EVERYTHING.settings)}
    meant = {*SYNONYMS.values()} | {word for phrase, word in PHRASES.items() if phrase != word.removesuffix("s")}
    assert meant - {"and"} <= grammar | {*PHRASES}
    assert not {*SYNONYMS} & (grammar | {*VARIANTS})
    assert {*EMOJI.values()} == {*KINDS} and not {*KINDS} & FRAMING_WORDS and not LARGE_NUMBERS & FRAMING_WORDS


ANY_WORD = st.sampled_from([
    *caption_vocabulary(EVERYTHING.settings), *FRAMING_WORDS, *LARGE_NUMBERS, *PHRASES, *SYNONYMS,
    *EMOJI, "no", "without", "or", "9", "0",
    "dragon", "red", "top", "bottom", "🐉", "between", ",",
])  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.lists(ANY_WORD, max_size=14).map(" ".join), st.text(max_size=60)), worlds)
def test_any_text_becomes_valid_caption_or_none(prompt: str, world: World) -> None:
    found = world.rewrite_prompt(prompt)
    assert not found.caption or world.parse(found.caption).composition is not None
    assert not found.caption or world.rewrite_prompt(found.caption).caption == found.caption
