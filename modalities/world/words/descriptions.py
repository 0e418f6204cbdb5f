"""Descriptions of emoji scenes in two or three full sentences that state sizes, counts, relation and background.

    write_description(with_scene_sizes(composition, scene), rng)

"I can see one small panda and two large rockets in this simple and cheerful little scene. …" Captions are prompts for
images; descriptions are answers, and 40 to 120 words and marks long, so that drafting pays off.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polydraft.modalities.world.scene import MIRRORED, Composition, ObjectGroup, Scene
from polydraft.modalities.world.words.captions import RELATION_WORDS, describe_group, pluralise

# The templates use words with a meaning in the grammar (left, over, small, one, fire, …) in that meaning only.
OPENINGS = (
    "The picture shows {things}, drawn in the simple and cheerful style of emoji with clean and clear outlines.",
    "In this picture there {are} {things}, each drawn as a bright emoji that is easy to recognise.",
    "I can see {things} in this simple scene, which looks as if somebody had placed emoji on a sheet of paper.",
    "This is a simple drawing of {things}, and every object can be seen as a whole.",
)
RELATION_SENTENCES = (
    "{The_first} {stand} {relation} {the_second}, so {the_second} {are_second} {mirror} {the_first}.",
    "Looking closely, {the_first} can be found {relation} {the_second}, and both kinds of objects are easy to tell "
    "apart.",
    "{Relation} {the_second} {are_first} {the_first}, and the empty space around the objects is free of anything else.",
    "As for the arrangement, {the_first} {are_first} placed {relation} {the_second}, where each has room to itself.",
)
SINGLE_GROUP_SENTENCES = (
    "Apart from {the_first} the scene is empty, so the eye goes straight to {what} in it.",
    "{The_first} {are_first} the only thing to look at, and the space around {it} is free of anything else.",
    "Looking closely, {the_first} {have} clean edges and bright colours, with plenty of empty space around {it}.",
)
BACKGROUND_SENTENCES = (
    "Behind everything lies a plain {background} background that fills the picture from edge to edge.",
    "The background is {background}, an even and flat colour that reaches every edge of the picture.",
    "All of this is set against a {background} background, which is flat and even in every corner.",
)
BACKGROUND_OPENINGS = (
    "On a plain {background} background that fills the picture from edge to edge, there {are} {things}, drawn in the "
    "simple and cheerful style of emoji.",
    "Against a flat {background} background, which has the same colour in every corner of the picture, I can see "
    "{things}, each drawn as a bright emoji.",
)  # openings that also state the background


def with_scene_sizes(composition: Composition, scene: Scene) -> Composition:
    """Return a composition with its open sizes set to those of a scene."""
    sizes = {item.kind: item.size for item in scene.objects}
    return replace(composition, groups=tuple(replace(group, size=sizes[group.kind]) for group in composition.groups))


def write_description(composition: Composition, rng: np.random.Generator) -> str:
    """Write a description of a composition without its open sizes; `rng` chooses the wording."""
    words = template_values(composition, rng)
    middles = RELATION_SENTENCES if composition.relation else SINGLE_GROUP_SENTENCES
    if rng.random() < 0.3:
        sentences = [choose(BACKGROUND_OPENINGS, rng), choose(middles, rng)]
    else:
        sentences = [choose(OPENINGS, rng), choose(middles, rng), choose(BACKGROUND_SENTENCES, rng)]
    return " ".join(sentence.format(**words) for sentence in sentences)


def template_values(composition: Composition, rng: np.random.Generator) -> dict[str, str]:
    """Return the values of the placeholders of the templates."""
    first, second = composition.groups[0], composition.groups[-1]
    is_plural = first.count > 1
    words = {
        "things": join_groups(composition, rng), "are": verb_be(first), "background": composition.background,
        "the_first": definite_phrase(first), "the_second": definite_phrase(second), "are_first": verb_be(first),
        "are_second": verb_be(second), "stand": "stand" if is_plural else "stands",
        "have": "have" if is_plural else "has", "it": "them" if is_plural else "it",
        "what": "the objects" if is_plural else "the object",
    }  # fmt: skip
    if composition.relation:
        words["relation"] = choose(RELATION_WORDS[composition.relation], rng)
        words["mirror"] = choose(RELATION_WORDS[MIRRORED[composition.relation]], rng)
    return words | {name.capitalize(): capitalise_first(text) for name, text in words.items()}


def join_groups(composition: Composition, rng: np.random.Generator) -> str:
    """Return a phrase for all groups, such as "two small pandas and a large rocket"."""
    return " and ".join(describe_group(group, rng) for group in composition.groups)


def definite_phrase(group: ObjectGroup) -> str:
    """Return a group's noun with the definite article."""
    return f"the {noun_for_count(group.kind, group.count)}"


def noun_for_count(kind: str, count: int) -> str:
    """Return the noun of a kind in the singular or the plural."""
    return kind if count == 1 else pluralise(kind)


def verb_be(group: ObjectGroup) -> str:
    """Return "is" or "are" for a group."""
    return "is" if group.count == 1 else "are"


def capitalise_first(text: str) -> str:
    """Return a text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def choose(wordings: tuple[str, ...], rng: np.random.Generator) -> str:
    """Choose one of several wordings at random."""
    return wordings[rng.integers(len(wordings))]
