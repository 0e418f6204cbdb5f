"""Scenes of the emoji dataset: objects on a background, their rendering, and the held-out part.

A scene has one to three objects that never overlap, on a grid of 8 pixels (one cell of a 16x16 token grid over 128x128
pixels). In a setting (`painting.settings`) objects are rotated, lit and cast shadows, so that an object seldom has the
same codes twice. A caption describes one or two groups of objects: "two frogs", or "a panda to the left of two bees".
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS, load_sheet
from polydraft.modalities.world.painting.matte import CELL, draw_on_matte
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.painting.staging import Pose, PosedItems, cast_shadows, draw_items, pose_items
from polydraft.modalities.world.painting.textures import Field

CANVAS = 128
GRID = CELL
GRID_SIDE = CANVAS // GRID  # cells in a line
NUM_CELLS = GRID_SIDE**2
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "blue": (96, 165, 235), "yellow": (250, 214, 92), "green": (122, 200, 120), "pink": (246, 168, 200),
    "grey": (176, 180, 186), "orange": (247, 160, 84), "purple": (168, 132, 220), "navy": (38, 52, 98),
}  # fmt: skip
RELATIONS = ("left", "right", "above", "below")
MIRRORED = {"left": "right", "right": "left", "above": "below", "below": "above"}


@dataclass(frozen=True)
class ObjectGroup:
    """Objects of one kind and one size."""

    kind: str
    count: int = 1
    size: str | None = None  # "large" or "small"; None leaves it open


@dataclass(frozen=True)
class Composition:
    """Content of a caption."""

    background: str  # a colour or a setting
    groups: tuple[ObjectGroup, ...]  # one or two
    relation: str | None = None  # of the first group to the second

    @property
    def is_held_out(self) -> bool:
        """Return whether it is in the tenth of compositions that training never sees; sizes do not matter."""
        kinds = [f"{group.count} {group.kind}" for group in self.groups]
        key = f"{self.background}|{self.relation}|{'|'.join(kinds)}"
        return zlib.crc32(key.encode()) % 10 == 0


@dataclass(frozen=True)
class PlacedObject:
    """One object of a scene."""

    kind: str
    size: str
    x: int  # left edge of its box in pixels
    y: int  # top edge of its box in pixels

    @property
    def side(self) -> int:
        return GLYPH_SIZES[self.size]


@dataclass(frozen=True)
class Scene:
    """Placed objects on a background."""

    background: str
    objects: tuple[PlacedObject, ...]
    seed: int = 0  # of the painting of a setting, and of the rotation and lighting of objects

    def build_layers(self) -> tuple[Field, PosedItems]:
        """Paint the background and pose the objects.

        Returns:
            tuple[Field, PosedItems]: `[128, 128, 3]` background in 0..1 with all shadows, and objects with their poses.
        """
        if self.background in SETTINGS:
            rng, setting = np.random.default_rng(self.seed), SETTINGS[self.background]
            background, shadow_strength = setting.paint(rng)
            sun = float(rng.uniform(-1, 1))
            items = pose_items(self.objects, sun, rng)
            cast_shadows(background, shadow_strength, items, setting, sun)
            return background, items
        canvas = np.empty((CANVAS, CANVAS, 3), np.float32)
        canvas[:] = np.asarray(BACKGROUNDS[self.background], np.float32) / np.float32(255)
        return canvas, [(item, Pose()) for item in self.objects]

    def render(self) -> NDArray[np.uint8]:
        """Return the image, `[128, 128, 3]` uint8."""
        return self.draw_layers(*self.build_layers())

    def render_on_matte(self) -> NDArray[np.uint8]:
        """Return the image with objects on a matte, which codes are learnt from; `[128, 128, 3]` uint8."""
        return to_uint8(draw_on_matte(*self.build_layers()))

    def render_both(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the image, and the image with objects on a matte."""
        layers = self.build_layers()
        return self.draw_layers(*layers), to_uint8(draw_on_matte(*layers))

    def draw_layers(self, background: Field, items: PosedItems) -> NDArray[np.uint8]:
        """Draw the objects over the background."""
        if self.background in SETTINGS:
            return to_uint8(draw_items(background, items, SETTINGS[self.background].tint))
        image = background.copy()
        for item in self.objects:
            glyph = load_sheet(item.size)[item.kind]
            box = image[item.y : item.y + item.side, item.x : item.x + item.side]
            box += glyph[..., 3:] * (glyph[..., :3] - box)
        return to_uint8(image)


def to_uint8(image: Field) -> NDArray[np.uint8]:
    """Convert an image in 0..1 to uint8."""
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)


def is_in_relation(first: PlacedObject, relation: str, second: PlacedObject) -> bool:
    """Return whether `first` is wholly clear of the box of `second` on the side that `relation` names."""
    if relation in ("right", "below"):
        first, second = second, first
    if relation in ("left", "right"):
        return first.x + first.side <= second.x
    return first.y + first.side <= second.y


def boxes_overlap(a: PlacedObject, b: PlacedObject) -> bool:
    """Return whether the boxes of two objects overlap."""
    return a.x < b.x + b.side and b.x < a.x + a.side and a.y < b.y + b.side and b.y < a.y + a.side


def random_composition(
    rng: np.random.Generator, held_out: bool = False, backgrounds: Sequence[str] = tuple(BACKGROUNDS)
) -> Composition:
    """Sample a composition from the caption grammar.

    Args:
        rng (np.random.Generator): the random generator.
        held_out (bool): whether to sample from the held-out part instead of the training part.
        backgrounds (Sequence[str]): the colours and settings to choose from.
    """
    kinds = list(KINDS)
    while True:
        background = backgrounds[int(rng.integers(len(backgrounds)))]
        sizes = [[None, "large", "small"][rng.integers(3)] for _ in range(2)]
        if rng.random() < 0.4:
            group = ObjectGroup(kinds[rng.integers(len(kinds))], int(rng.integers(1, 4)), sizes[0])
            composition = Composition(background, (group,))
        else:
            first, second = rng.choice(len(kinds), 2, replace=False)
            counts = [(1, 1), (1, 1), (1, 1), (2, 1), (1, 2)][rng.integers(5)]
            groups = (ObjectGroup(kinds[first], counts[0], sizes[0]), ObjectGroup(kinds[second], counts[1], sizes[1]))
            composition = Composition(background, groups, RELATIONS[rng.integers(4)])
        if composition.is_held_out == held_out:
            return composition


def random_position(size: str, rng: np.random.Generator) -> tuple[int, int]:
    """Sample x and y of a box on the grid."""
    num_positions = (CANVAS - GLYPH_SIZES[size]) // GRID + 1
    return int(rng.integers(num_positions)) * GRID, int(rng.integers(num_positions)) * GRID


def place_objects(composition: Composition, rng: np.random.Generator) -> Scene:
    """Sample a scene of a composition by rejection; open sizes are sampled, and boxes do not overlap."""
    is_flat = composition.background in BACKGROUNDS
    while True:
        objects: list[PlacedObject] = []
        owners: list[int] = []
        for owner, group in enumerate(composition.groups):
            size = group.size or ("large", "small")[rng.integers(2)]
            for _ in range(group.count):
                objects.append(PlacedObject(group.kind, size, *random_position(size, rng)))
                owners.append(owner)
        if any(boxes_overlap(a, b) for i, a in enumerate(objects) for b in objects[:i]):
            continue
        if composition.relation is not None:
            first = [item for item, owner in zip(objects, owners, strict=True) if owner == 0]
            second = [item for item, owner in zip(objects, owners, strict=True) if owner == 1]
            if not all(is_in_relation(a, composition.relation, b) for a in first for b in second):
                continue
        return Scene(composition.background, tuple(objects), 0 if is_flat else int(rng.integers(2**32)))
