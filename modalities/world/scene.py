"""Scenes of the emoji world: what stands where on which background, how it is drawn, and which scenes are held out.

A scene holds one to three objects that never overlap, on an 8-pixel grid (one cell of a 16x16 token grid over 128x128
pixels). In a setting (`settings.py`) they are turned, lit and have shadows, so that a thing is seldom twice the same
codes. A scene is described by one or two groups: "two frogs", or "a panda to the left of two bees".
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polydraft.modalities.world.glyphs import KINDS, SIZES, sheet
from polydraft.modalities.world.painting.matte import CELL, matted
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.painting.staging import Pose, Things, cast, drawn, posed
from polydraft.modalities.world.painting.textures import Field

CANVAS = 128
GRID = CELL
SIDE = CANVAS // GRID  # cells of a row
CELLS = SIDE**2
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "blue": (96, 165, 235), "yellow": (250, 214, 92), "green": (122, 200, 120), "pink": (246, 168, 200),
    "grey": (176, 180, 186), "orange": (247, 160, 84), "purple": (168, 132, 220), "navy": (38, 52, 98),
}  # fmt: skip
RELATIONS = ("left", "right", "above", "below")
MIRROR = {"left": "right", "right": "left", "above": "below", "below": "above"}


@dataclass(frozen=True)
class Group:
    """`count` objects of one kind and one size; `size` None leaves it to whoever draws."""

    kind: str
    count: int = 1
    size: str | None = None


@dataclass(frozen=True)
class Composition:
    """What a caption says: a background (a colour or a setting), one or two groups, and how the first stands to the
    second."""

    background: str
    groups: tuple[Group, ...]
    relation: str | None = None

    @property
    def held_out(self) -> bool:
        """True for the tenth of all compositions that training never sees (wording, size and place do not matter)."""
        kinds = [f"{group.count} {group.kind}" for group in self.groups]
        key = f"{self.background}|{self.relation}|{'|'.join(kinds)}"
        return zlib.crc32(key.encode()) % 10 == 0


@dataclass(frozen=True)
class Placed:
    """One object: its kind, size and the top-left corner of its box in pixels."""

    kind: str
    size: str
    x: int
    y: int

    @property
    def side(self) -> int:
        return SIZES[self.size]


@dataclass(frozen=True)
class Scene:
    """seed: of what a caption leaves open beside places: how a setting is painted, how things are turned and lit."""

    background: str
    objects: tuple[Placed, ...]
    seed: int = 0

    def layers(self) -> tuple[Field, Things]:
        """What is behind things, `[128, 128, 3]` in 0..1 with all shadows, and how the things are turned and lit."""
        if self.background in SETTINGS:
            rng, setting = np.random.default_rng(self.seed), SETTINGS[self.background]
            picture, ground = setting.paint(rng)
            sun = float(rng.uniform(-1, 1))
            things = posed(self.objects, sun, rng)
            cast(picture, ground, things, setting, sun)
            return picture, things
        canvas = np.empty((CANVAS, CANVAS, 3), np.float32)
        canvas[:] = np.asarray(BACKGROUNDS[self.background], np.float32) / np.float32(255)
        return canvas, [(item, Pose()) for item in self.objects]

    def render(self) -> NDArray[np.uint8]:
        """The picture, `[128, 128, 3]` uint8."""
        return self.painted(*self.layers())

    def matted(self) -> NDArray[np.uint8]:
        """What codes tell of it (`matte.py`), `[128, 128, 3]` uint8."""
        return to_bytes(matted(*self.layers()))

    def views(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The picture, and what codes tell of it."""
        layers = self.layers()
        return self.painted(*layers), to_bytes(matted(*layers))

    def painted(self, picture: Field, things: Things) -> NDArray[np.uint8]:
        """`layers` as a picture."""
        if self.background in SETTINGS:
            return to_bytes(drawn(picture, things, SETTINGS[self.background].tint))
        picture = picture.copy()
        for item in self.objects:
            glyph = sheet(item.size)[item.kind]
            box = picture[item.y : item.y + item.side, item.x : item.x + item.side]
            box += glyph[..., 3:] * (glyph[..., :3] - box)
        return to_bytes(picture)


def to_bytes(picture: Field) -> NDArray[np.uint8]:
    """0..1 as 0..255."""
    return (np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8)


def stands(first: Placed, relation: str, second: Placed) -> bool:
    """Whether `first` stands in `relation` to `second`: wholly clear of its box on that side."""
    if relation in ("right", "below"):
        first, second = second, first
    if relation in ("left", "right"):
        return first.x + first.side <= second.x
    return first.y + first.side <= second.y


def overlap(a: Placed, b: Placed) -> bool:
    return a.x < b.x + b.side and b.x < a.x + a.side and a.y < b.y + b.side and b.y < a.y + a.side


def random_composition(
    rng: np.random.Generator, held_out: bool = False, backgrounds: Sequence[str] = tuple(BACKGROUNDS)
) -> Composition:
    """A composition drawn from the grammar, from the training part or from the held-out one."""
    kinds = list(KINDS)
    while True:
        background = backgrounds[int(rng.integers(len(backgrounds)))]
        sizes = [[None, "large", "small"][rng.integers(3)] for _ in range(2)]
        if rng.random() < 0.4:
            alone = Group(kinds[rng.integers(len(kinds))], int(rng.integers(1, 4)), sizes[0])
            composition = Composition(background, (alone,))
        else:
            first, second = rng.choice(len(kinds), 2, replace=False)
            counts = [(1, 1), (1, 1), (1, 1), (2, 1), (1, 2)][rng.integers(5)]
            groups = (Group(kinds[first], counts[0], sizes[0]), Group(kinds[second], counts[1], sizes[1]))
            composition = Composition(background, groups, RELATIONS[rng.integers(4)])
        if composition.held_out == held_out:
            return composition


def somewhere(size: str, rng: np.random.Generator) -> tuple[int, int]:
    """x and y of a box on the grid, anywhere on the canvas."""
    places = (CANVAS - SIZES[size]) // GRID + 1
    return int(rng.integers(places)) * GRID, int(rng.integers(places)) * GRID


def place(composition: Composition, rng: np.random.Generator) -> Scene:
    """A scene that fits `composition`, by rejection: sizes left open are drawn, boxes do not overlap."""
    flat = composition.background in BACKGROUNDS
    while True:
        objects: list[Placed] = []
        owners: list[int] = []
        for owner, group in enumerate(composition.groups):
            size = group.size or ("large", "small")[rng.integers(2)]
            for _ in range(group.count):
                objects.append(Placed(group.kind, size, *somewhere(size, rng)))
                owners.append(owner)
        if any(overlap(a, b) for i, a in enumerate(objects) for b in objects[:i]):
            continue
        if composition.relation is not None:
            first = [item for item, owner in zip(objects, owners, strict=True) if owner == 0]
            second = [item for item, owner in zip(objects, owners, strict=True) if owner == 1]
            if not all(stands(a, composition.relation, b) for a in first for b in second):
                continue
        return Scene(composition.background, tuple(objects), 0 if flat else int(rng.integers(2**32)))
