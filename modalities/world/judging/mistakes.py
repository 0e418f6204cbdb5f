"""Pictures with one mistake each: what the matcher must turn down.

for name, plant in MISTAKES.items():
    wrong = plant(composition, scene, rng)           # a picture that does not show the composition, or None
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    CANVAS,
    GRID,
    MIRROR,
    Composition,
    Placed,
    Scene,
    overlap,
    place,
)

Picture = NDArray[np.uint8]
Plant = Callable[[Composition, Scene, np.random.Generator], Picture | None]


def one_of(scene: Scene, rng: np.random.Generator) -> Placed:
    return scene.objects[rng.integers(len(scene.objects))]


def without(scene: Scene, item: Placed) -> Scene:
    return replace(scene, objects=tuple(other for other in scene.objects if other != item))


def with_one_more(scene: Scene, kind: str, rng: np.random.Generator) -> Scene | None:
    """A small thing more where there is room."""
    reach = range(0, CANVAS - SIZES["small"] + 1, GRID)
    spots = [Placed(kind, "small", x, y) for x in reach for y in reach]
    spots = [spot for spot in spots if not any(overlap(spot, item) for item in scene.objects)]
    return replace(scene, objects=(*scene.objects, spots[rng.integers(len(spots))])) if spots else None


def stranger(scene: Scene, rng: np.random.Generator) -> str:
    return str(rng.choice(sorted(set(KINDS) - {item.kind for item in scene.objects})))


def other_kind(composition: Composition, scene: Scene, rng: np.random.Generator) -> Picture:
    item, kind = one_of(scene, rng), stranger(scene, rng)
    others = (replace(other, kind=kind) if other == item else other for other in scene.objects)
    return replace(scene, objects=tuple(others)).render()


def missing(composition: Composition, scene: Scene, rng: np.random.Generator) -> Picture:
    return without(scene, one_of(scene, rng)).render()


def extra(composition: Composition, scene: Scene, rng: np.random.Generator) -> Picture | None:
    kind = one_of(scene, rng).kind if rng.random() < 0.5 else stranger(scene, rng)
    more = with_one_more(scene, kind, rng)
    return None if more is None else more.render()


def other_relation(composition: Composition, scene: Scene, rng: np.random.Generator) -> Picture | None:
    if composition.relation is None:
        return None
    turned = place(replace(composition, relation=MIRROR[composition.relation]), rng)
    return replace(turned, seed=scene.seed).render()


def other_ground(composition: Composition, scene: Scene, rng: np.random.Generator) -> Picture:
    among = SETTINGS if scene.background in SETTINGS else BACKGROUNDS
    return replace(scene, background=str(rng.choice(sorted(set(among) - {scene.background})))).render()


def other_size(composition: Composition, scene: Scene, rng: np.random.Generator) -> Picture | None:
    groups = [group for group in composition.groups if group.size is not None]
    if not groups:
        return None
    changed = replace(groups[0], size="small" if groups[0].size == "large" else "large")
    swapped = tuple(changed if group == groups[0] else group for group in composition.groups)
    return replace(place(replace(composition, groups=swapped), rng), seed=scene.seed).render()


def half(composition: Composition, scene: Scene, rng: np.random.Generator) -> Picture:
    """Half of a thing's box, cut across or down through the middle of what is drawn, is as if it were not there."""
    item = one_of(scene, rng)
    whole, bare = scene.render(), without(scene, item).render()
    if scene.background in SETTINGS:  # the others keep their turn and their light
        order = (*without(scene, item).objects, item)
        whole = replace(scene, objects=order).render()
    box = (slice(item.y, item.y + item.side), slice(item.x, item.x + item.side))
    axis = int(rng.integers(2))
    drawn = np.nonzero(np.abs(whole[box].astype(int) - bare[box]).sum(-1) > 24)[axis]
    middle = int(np.median(drawn)) if len(drawn) else item.side // 2
    cut = (slice(None, middle), slice(middle, None))[rng.integers(2)]
    inside = (cut, slice(None)) if axis == 0 else (slice(None), cut)
    whole[box][inside] = bare[box][inside]
    return whole


MISTAKES: dict[str, Plant] = {
    "other kind": other_kind, "missing": missing, "extra": extra, "other relation": other_relation,
    "other ground": other_ground, "other size": other_size, "half": half,
}  # fmt: skip
