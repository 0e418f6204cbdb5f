"""The caption grammar of the emoji world: a composition in words, in several wordings.

a panda to the left of a rocket on a yellow background
two frogs on a blue background
pink background with a small cactus above a large sun
three bees under the stars
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import BACKGROUNDS, Composition, Group

COUNTS: dict[int, tuple[str, ...]] = {1: ("a", "one"), 2: ("two",), 3: ("three",)}
SIZE_WORDS: dict[str, tuple[str, ...]] = {"large": ("large", "big"), "small": ("small", "little")}
RELATION_WORDS: dict[str, tuple[str, ...]] = {
    "left": ("to the left of", "left of"),
    "right": ("to the right of", "right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
IRREGULAR_PLURALS = {
    "fox": "foxes", "monkey": "monkeys", "butterfly": "butterflies", "fish": "fish", "strawberry": "strawberries",
    "grapes": "grapes", "cherries": "cherries", "bus": "buses", "cactus": "cacti", "octopus": "octopuses",
}  # fmt: skip
TEMPLATES = (
    "{scene} on {background} background",
    "{scene} on {background} background",
    "{scene} against {background} background",
    "{background} background with {scene}",
)
IN_SETTINGS = ("{scene} {setting}", "{scene} {setting}", "{scene} {setting}", "{setting} {scene}")


def plural(kind: str) -> str:
    return IRREGULAR_PLURALS.get(kind, kind + "s")


def describe_group(group: Group, rng: np.random.Generator) -> str:
    count = COUNTS[group.count][rng.integers(len(COUNTS[group.count]))]
    size = SIZE_WORDS[group.size][rng.integers(2)] if group.size else ""
    return named(count, size, group.kind, group.count)


def named(number: str, size: str, kind: str, count: int) -> str:
    """Return "two small frogs": words for a number and a size ("" for none), and the noun for `count` of a kind."""
    noun = kind if count == 1 else plural(kind)
    return with_article(" ".join(filter(None, [number, size, noun])))


def with_article(phrase: str) -> str:
    """ "a apple" as people write it; "a unicorn" stays."""
    first, _, rest = phrase.partition(" ")
    return f"an {rest}" if first == "a" and rest[0] in "aeiou" and not rest.startswith("uni") else phrase


def describe(composition: Composition, rng: np.random.Generator) -> str:
    """One caption of `composition`; `rng` picks the wording."""
    scene = describe_group(composition.groups[0], rng)
    if composition.relation is not None:
        relation = RELATION_WORDS[composition.relation][rng.integers(2)]
        scene = f"{scene} {relation} {describe_group(composition.groups[1], rng)}"
    if composition.background in SETTINGS:
        return in_setting(scene, composition.background, rng)
    template = TEMPLATES[rng.integers(len(TEMPLATES))]
    background = composition.background
    if not template.startswith("{background}"):
        background = with_article(f"a {background}")
    return template.format(scene=scene, background=background)


def in_setting(things: str, setting: str, rng: np.random.Generator) -> str:
    """ "a cat in the snow", "under the stars two frogs"."""
    wordings = SETTINGS[setting].wordings
    where = wordings[rng.integers(len(wordings))]
    return IN_SETTINGS[rng.integers(len(IN_SETTINGS))].format(scene=things, setting=where)


def wordings(settings: Collection[str] = ()) -> dict[str, list[str]]:
    """What can be drawn, by category, in the words of a prompt."""
    found = {
        "kinds": list(KINDS), "backgrounds": list(BACKGROUNDS),
        "relations": [wording for wordings in RELATION_WORDS.values() for wording in wordings],
        "counts": [word for words in COUNTS.values() for word in words],
        "sizes": [word for words in SIZE_WORDS.values() for word in words],
    }  # fmt: skip
    where = [wording for setting in settings for wording in SETTINGS[setting].wordings]
    return found | ({"settings": where} if where else {})


def vocabulary(settings: Collection[str] = ()) -> list[str]:
    """Every word the grammar can produce, in a fixed order; of settings last."""
    words: list[str] = ["a", "an", "on", "background", "with", "against"]
    for group in (*COUNTS.values(), *SIZE_WORDS.values()):
        words += group
    for relation in RELATION_WORDS.values():
        for wording in relation:
            words += wording.split()
    words += list(BACKGROUNDS) + list(KINDS) + [plural(kind) for kind in KINDS]
    for setting in settings:
        for wording in SETTINGS[setting].wordings:
            words += wording.split()
    return list(dict.fromkeys(words))


def synonyms() -> dict[str, str]:
    """Words that mean the same to a model that also reads the count: every plural, and its singular."""
    return {plural(kind): kind for kind in KINDS if plural(kind) != kind}
