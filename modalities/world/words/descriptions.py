"""Descriptions of emoji scenes in two or three full sentences that name sizes, counts, relation and background.

    description(stated(composition, scene), rng)

"I can see one small panda and two large rockets in this simple and cheerful little scene. …" A caption asks for a
picture, a description answers what is in one, so it is long enough that drafting has something to earn: 40 to 120
words and marks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polydraft.modalities.world.scene import MIRROR, Composition, Group, Scene
from polydraft.modalities.world.words.captions import RELATION_WORDS, describe_group, plural

# Words with a meaning in this world (left, over, small, one, fire, …) stand nowhere in the templates but in their role.
OPENINGS = (
    "The picture shows {things}, drawn in the simple and cheerful style of emoji with clean and clear outlines.",
    "In this picture there {are} {things}, each drawn as a bright emoji that is easy to recognise.",
    "I can see {things} in this simple scene, which looks as if somebody had placed emoji on a sheet of paper.",
    "This is a simple drawing of {things}, and every object can be seen as a whole.",
)
RELATIONS_TOLD = (
    "{The_first} {stand} {relation} {the_second}, so {the_second} {are_second} {mirror} {the_first}.",
    "Looking closely, {the_first} can be found {relation} {the_second}, and both kinds of objects are easy to tell "
    "apart.",
    "{Relation} {the_second} {are_first} {the_first}, and the empty space around the objects is free of anything else.",
    "As for the arrangement, {the_first} {are_first} placed {relation} {the_second}, where each has room to itself.",
)
ALONE_TOLD = (
    "Apart from {the_first} the scene is empty, so the eye goes straight to {what} in it.",
    "{The_first} {are_first} the only thing to look at, and the space around {it} is free of anything else.",
    "Looking closely, {the_first} {have} clean edges and bright colours, with plenty of empty space around {it}.",
)
BACKGROUNDS_TOLD = (
    "Behind everything lies a plain {background} background that fills the picture from edge to edge.",
    "The background is {background}, an even and flat colour that reaches every edge of the picture.",
    "All of this is set against a {background} background, which is flat and even in every corner.",
)
SET_OUT = (
    "On a plain {background} background that fills the picture from edge to edge, there {are} {things}, drawn in the "
    "simple and cheerful style of emoji.",
    "Against a flat {background} background, which has the same colour in every corner of the picture, I can see "
    "{things}, each drawn as a bright emoji.",
)  # openings that name the background too


def stated(composition: Composition, scene: Scene) -> Composition:
    """The composition with the sizes it left open, as they were drawn."""
    sizes = {item.kind: item.size for item in scene.objects}
    return replace(composition, groups=tuple(replace(group, size=sizes[group.kind]) for group in composition.groups))


def description(composition: Composition, rng: np.random.Generator) -> str:
    """One description of `composition`; `rng` picks the wording. A size that is None is not told."""
    words = fill(composition, rng)
    told = RELATIONS_TOLD if composition.relation else ALONE_TOLD
    if rng.random() < 0.3:
        sentences = [pick(SET_OUT, rng), pick(told, rng)]
    else:
        sentences = [pick(OPENINGS, rng), pick(told, rng), pick(BACKGROUNDS_TOLD, rng)]
    return " ".join(sentence.format(**words) for sentence in sentences)


def fill(composition: Composition, rng: np.random.Generator) -> dict[str, str]:
    """What stands in the gaps of the templates."""
    first, second = composition.groups[0], composition.groups[-1]
    many = first.count > 1
    words = {
        "things": listed(composition, rng), "are": be(first), "background": composition.background,
        "the_first": the(first), "the_second": the(second), "are_first": be(first), "are_second": be(second),
        "stand": "stand" if many else "stands", "have": "have" if many else "has", "it": "them" if many else "it",
        "what": "the objects" if many else "the object",
    }  # fmt: skip
    if composition.relation:
        words["relation"] = pick(RELATION_WORDS[composition.relation], rng)
        words["mirror"] = pick(RELATION_WORDS[MIRROR[composition.relation]], rng)
    return words | {name.capitalize(): upper(text) for name, text in words.items()}


def listed(composition: Composition, rng: np.random.Generator) -> str:
    """ "two small pandas and a large rocket"."""
    return " and ".join(describe_group(group, rng) for group in composition.groups)


def the(group: Group) -> str:
    return f"the {noun(group.kind, group.count)}"


def noun(kind: str, count: int) -> str:
    return kind if count == 1 else plural(kind)


def be(group: Group) -> str:
    return "is" if group.count == 1 else "are"


def upper(text: str) -> str:
    """The text as a sentence begins."""
    return text[:1].upper() + text[1:]


def pick(wordings: tuple[str, ...], rng: np.random.Generator) -> str:
    return wordings[rng.integers(len(wordings))]
