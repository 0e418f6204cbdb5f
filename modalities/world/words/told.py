"""What a description of an emoji scene gets right, part by part.

judged("Two small pandas …", composition, scene).ok
"""

from __future__ import annotations

from dataclasses import dataclass

from polydraft.modalities.world.scene import Composition, Scene
from polydraft.modalities.world.words.answers import Truth, claims
from polydraft.modalities.world.words.questions import plain, states_background, states_relation


@dataclass(frozen=True)
class Told:
    """objects: all kinds are named and no other. counts, sizes: of every kind, those that are there; a size that the
    composition leaves open need not be told. relation, background: told, and truly. true: nothing it says is false."""

    objects: bool
    counts: bool
    sizes: bool
    relation: bool
    background: bool
    true: bool

    @property
    def ok(self) -> bool:
        return all(vars(self).values())


def judged(text: str, composition: Composition, scene: Scene | None = None) -> Told:
    """Judge a description; with the scene, relations that are to be seen there are true as well."""
    said, truth = claims(text), Truth.of(composition, scene)
    sized = {size.kind for size in said.sizes if not size.denied}
    sized |= {mention.kind for mention in said.mentions if mention.size is not None and not mention.denied}
    relations = [relation.holds(truth, None) for relation in said.relations]
    colours = {colour for colour, denied in said.colours if not denied}
    return Told(
        objects=said.kinds == set(truth.counts),
        counts=all(said.counts(kind) == {count} for kind, count in truth.counts.items()),
        sizes=all(group.size is None or {group.kind, None} & sized for group in composition.groups)
        and all(size.holds(truth) for size in said.sizes)
        and all(mention.size in (None, truth.sizes.get(mention.kind)) for mention in said.mentions),
        relation=all(relations) and (composition.relation is None or states_relation(said)),
        background=states_background(said, truth) and colours == {truth.background},
        true=said.true_of(truth) and plain(said),
    )
