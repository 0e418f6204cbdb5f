"""Images with one mistake each, which the matcher must reject.

for name, mistake in MISTAKES.items():
    wrong = mistake(composition, scene, rng)           # an image that does not show the composition, or None
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    CANVAS,
    GRID,
    MIRRORED,
    Composition,
    PlacedObject,
    Scene,
    boxes_overlap,
    place_objects,
)

Picture = NDArray[np.uint8]
Mistake = Callable[[Composition, Scene, np.random.Generator], Picture | None]


def random_object(scene: Scene, rng: np.random.Generator) -> PlacedObject:
    return scene.objects[rng.integers(len(scene.objects))]


def remove_object(scene: Scene, item: PlacedObject) -> Scene:
    return replace(scene, objects=tuple(other for other in scene.objects if other != item))


def add_object(scene: Scene, kind: str, rng: np.random.Generator) -> Scene | None:
    """Add a small object where there is room; return None where there is none."""
    reach = range(0, CANVAS - GLYPH_SIZES["small"] + 1, GRID)
    positions = [PlacedObject(kind, "small", x, y) for x in reach for y in reach]
    positions = [position for position in positions if not any(boxes_overlap(position, item) for item in scene.objects)]
    return replace(scene, objects=(*scene.objects, positions[rng.integers(len(positions))])) if positions else None


def absent_kind(scene: Scene, rng: np.random.Generator) -> str:
    return str(rng.choice(sorted(set(KINDS) - {item.kind for item in scene.objects})))


def change_kind(composition: Composition, scene: Scene, rng: np.random.Generator) -> Picture:
    item, kind = random_object(scene, rng), absent_kind(scene, rng)
    others = (replace(other, kind=kind) if other == item else other for other in scene.objects)
    return replace(scene, objects=tuple(others)).render()


def remove_one(composition: Composition, scene: Scene, rng: np.random.Generator) -> Picture:
    return remove_object(scene, random_object(scene, rng)).render()


def add_one(composition: Composition, scene: Scene, rng: np.random.Generator) -> Picture | None:
    kind = random_object(scene, rng).kind if rng.random() < 0.5 else absent_kind(scene, rng)
    more = add_object(scene, kind, rng)
    return None if more is None else more.render()


def mirror_relation(composition: Composition, scene: Scene, rng: np.random.Generator) -> Picture | None:
    if composition.relation is None:
        return None
    turned = place_objects(replace(composition, relation=MIRRORED[composition.relation]), rng)
    return replace(turned, seed=scene.seed).render()


def change_background(composition: Composition, scene: Scene, rng: np.random.Generator) -> Picture:
    among = SETTINGS if scene.background in SETTINGS else BACKGROUNDS
    return replace(scene, background=str(rng.choice(sorted(set(among) - {scene.background})))).render()


def change_size(composition: Composition, scene: Scene, rng: np.random.Generator) -> Picture | None:
    groups = [group for group in composition.groups if group.size is not None]
    if not groups:
        return None
    changed = replace(groups[0], size="small" if groups[0].size == "large" else "large")
    swapped = tuple(changed if group == groups[0] else group for group in composition.groups)
    return replace(place_objects(replace(composition, groups=swapped), rng), seed=scene.seed).render()


def erase_half(composition: Composition, scene: Scene, rng: np.random.Generator) -> Picture:
    """Erase half of an object, cut horizontally or vertically through the middle of its visible pixels."""
    item = random_object(scene, rng)
    whole, bare = scene.render(), remove_object(scene, item).render()
    if scene.background in SETTINGS:  # the other objects keep their rotation and light
        order = (*remove_object(scene, item).objects, item)
        whole = replace(scene, objects=order).render()
    box = (slice(item.y, item.y + item.side), slice(item.x, item.x + item.side))
    axis = int(rng.integers(2))
    visible = np.nonzero(np.abs(whole[box].astype(int) - bare[box]).sum(-1) > 24)[axis]
    middle = int(np.median(visible)) if len(visible) else item.side // 2
    cut = (slice(None, middle), slice(middle, None))[rng.integers(2)]
    inside = (cut, slice(None)) if axis == 0 else (slice(None), cut)
    whole[box][inside] = bare[box][inside]
    return whole


MISTAKES: dict[str, Mistake] = {
    "other kind": change_kind, "missing": remove_one, "extra": add_one, "other relation": mirror_relation,
    "other ground": change_background, "other size": change_size, "half": erase_half,
}  # fmt: skip
