"""Scores of descriptions of emoji scenes, part by part.

grade_description("Two small pandas …", composition, scene).ok
"""

from __future__ import annotations

from dataclasses import dataclass

from polydraft.modalities.world.scene import Composition, Scene
from polydraft.modalities.world.words.answers import Truth, parse_claims
from polydraft.modalities.world.words.questions import has_no_stray_denial, states_background, states_relation


@dataclass(frozen=True)
class DescriptionScore:
    """Correct parts of a description."""

    objects: bool  # all kinds are named, and no others
    counts: bool  # the count of every kind is stated
    sizes: bool  # the size of every kind is stated, unless the composition leaves it open
    relation: bool  # the relation is stated, and every stated relation is true
    background: bool  # the background is stated, and no other colour
    true: bool  # no claim is false

    @property
    def ok(self) -> bool:
        return all(vars(self).values())


def grade_description(text: str, composition: Composition, scene: Scene | None = None) -> DescriptionScore:
    """Score a description.

    Args:
        text (str): the description.
        composition (Composition): the content of the scene.
        scene (Scene | None): the scene, whose visible relations are true as well.
    """
    claims, truth = parse_claims(text), Truth.from_composition(composition, scene)
    sized = {size.kind for size in claims.sizes if not size.denied}
    sized |= {mention.kind for mention in claims.mentions if mention.size is not None and not mention.denied}
    relations = [relation.is_true(truth, None) for relation in claims.relations]
    colours = {colour for colour, denied in claims.colours if not denied}
    return DescriptionScore(
        objects=claims.kinds == set(truth.counts),
        counts=all(claims.counts(kind) == {count} for kind, count in truth.counts.items()),
        sizes=all(group.size is None or {group.kind, None} & sized for group in composition.groups)
        and all(size.is_true(truth) for size in claims.sizes)
        and all(mention.size in (None, truth.sizes.get(mention.kind)) for mention in claims.mentions),
        relation=all(relations) and (composition.relation is None or states_relation(claims)),
        background=states_background(claims, truth) and colours == {truth.background},
        true=claims.are_true_of(truth) and has_no_stray_denial(claims),
    )
