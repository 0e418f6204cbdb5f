"""Caption grammar of the emoji dataset: a composition in words, in several wordings.

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
from polydraft.modalities.world.scene import BACKGROUNDS, Composition, ObjectGroup

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
SETTING_TEMPLATES = ("{scene} {setting}", "{scene} {setting}", "{scene} {setting}", "{setting} {scene}")


def pluralise(kind: str) -> str:
    """Return the plural of a kind."""
    return IRREGULAR_PLURALS.get(kind, kind + "s")


def describe_group(group: ObjectGroup, rng: np.random.Generator) -> str:
    """Write a noun phrase for a group, such as "two small frogs"; `rng` chooses the words."""
    count = COUNTS[group.count][rng.integers(len(COUNTS[group.count]))]
    size = SIZE_WORDS[group.size][rng.integers(2)] if group.size else ""
    return noun_phrase(count, size, group.kind, group.count)


def noun_phrase(number: str, size: str, kind: str, count: int) -> str:
    """Return a noun phrase such as "two small frogs".

    Args:
        number (str): the word for the number; empty for none.
        size (str): the word for the size; empty for none.
        kind (str): the kind of object.
        count (int): the number of objects, which decides between singular and plural.
    """
    noun = kind if count == 1 else pluralise(kind)
    return with_article(" ".join(filter(None, [number, size, noun])))


def with_article(phrase: str) -> str:
    """Return a phrase with "an" instead of "a" where English needs it: "an apple", but "a unicorn"."""
    first, _, rest = phrase.partition(" ")
    return f"an {rest}" if first == "a" and rest[0] in "aeiou" and not rest.startswith("uni") else phrase


def write_caption(composition: Composition, rng: np.random.Generator) -> str:
    """Write a caption of a composition; `rng` chooses the wording."""
    scene = describe_group(composition.groups[0], rng)
    if composition.relation is not None:
        relation = RELATION_WORDS[composition.relation][rng.integers(2)]
        scene = f"{scene} {relation} {describe_group(composition.groups[1], rng)}"
    if composition.background in SETTINGS:
        return add_setting(scene, composition.background, rng)
    template = TEMPLATES[rng.integers(len(TEMPLATES))]
    background = composition.background
    if not template.startswith("{background}"):
        background = with_article(f"a {background}")
    return template.format(scene=scene, background=background)


def add_setting(objects: str, setting: str, rng: np.random.Generator) -> str:
    """Add a setting to a phrase for objects: "a cat in the snow", "under the stars two frogs"."""
    wordings = SETTINGS[setting].wordings
    phrase = wordings[rng.integers(len(wordings))]
    return SETTING_TEMPLATES[rng.integers(len(SETTING_TEMPLATES))].format(scene=objects, setting=phrase)


def prompt_choices(settings: Collection[str] = ()) -> dict[str, list[str]]:
    """Return what prompts may ask for, by category, in the words of a prompt."""
    choices = {
        "kinds": list(KINDS), "backgrounds": list(BACKGROUNDS),
        "relations": [wording for wordings in RELATION_WORDS.values() for wording in wordings],
        "counts": [word for words in COUNTS.values() for word in words],
        "sizes": [word for words in SIZE_WORDS.values() for word in words],
    }  # fmt: skip
    setting_wordings = [wording for setting in settings for wording in SETTINGS[setting].wordings]
    return choices | ({"settings": setting_wordings} if setting_wordings else {})


def caption_vocabulary(settings: Collection[str] = ()) -> list[str]:
    """Return every word of the grammar in a fixed order, the words of settings last."""
    words: list[str] = ["a", "an", "on", "background", "with", "against"]
    for group in (*COUNTS.values(), *SIZE_WORDS.values()):
        words += group
    for relation in RELATION_WORDS.values():
        for wording in relation:
            words += wording.split()
    words += list(BACKGROUNDS) + list(KINDS) + [pluralise(kind) for kind in KINDS]
    for setting in settings:
        for wording in SETTINGS[setting].wordings:
            words += wording.split()
    return list(dict.fromkeys(words))


def plural_synonyms() -> dict[str, str]:
    """Return the singular of every plural; a model that also reads the count needs no difference."""
    return {pluralise(kind): kind for kind in KINDS if pluralise(kind) != kind}
