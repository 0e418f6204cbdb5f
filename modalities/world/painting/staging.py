"""Things set into a setting: a little turned, lit from one side, with soft shadows.

things = posed(items, sun, rng)
cast(picture, ground, things, setting, sun)
drawn(picture, things, setting.tint)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from PIL import Image

from polydraft.modalities.world.glyphs import SIZES, sheet
from polydraft.modalities.world.painting.settings import Setting
from polydraft.modalities.world.painting.textures import SIDE, Field, blurred

TURNS = (-5.0, 0.0, 5.0)  # degrees: few, so that the first cells of a thing tell how the others must be
SHRUNK = 0.94  # so that a turned thing stays within its box
BRIGHTNESS = (0.95, 1.05)
SLOPE = 0.06  # most that brightness gains or loses from the middle of a thing to its side
SHADOW = 0.42  # of the light that shadows take away


class Item(Protocol):
    """A thing and the top-left corner of its box."""

    @property
    def kind(self) -> str: ...
    @property
    def size(self) -> str: ...
    @property
    def x(self) -> int: ...
    @property
    def y(self) -> int: ...


@dataclass(frozen=True)
class Pose:
    """turn: degrees. light: brightness in the middle; slope: what it gains towards the right and towards the bottom."""

    turn: float = 0.0
    light: float = 1.0
    slope: tuple[float, float] = (0.0, 0.0)

    @staticmethod
    def random(rng: np.random.Generator, sun: float) -> Pose:
        """sun: where the light comes from, -1 (left) to 1."""
        turn, light = TURNS[int(rng.integers(len(TURNS)))], rng.uniform(*BRIGHTNESS)
        return Pose(turn, float(light), (SLOPE * sun, -SLOPE * float(rng.uniform(0, 1))))


@functools.cache
def raster(kind: str, size: str) -> Image.Image:
    """A glyph with premultiplied colours, as images are resampled."""
    pixels = (sheet(size)[kind] * 255 + 0.5).astype(np.uint8)
    return Image.fromarray(pixels, "RGBA").convert("RGBa")


@functools.cache
def turned(kind: str, size: str, turn: float) -> Field:
    """`[S, S, 4]` in 0..1, premultiplied: the glyph turned about its middle; shared, not to be changed.

    Small ones come from the large raster, drawn twice as large as they are: turning takes no sharpness.
    """
    if not turn:
        return np.asarray(raster(kind, size), np.float32) / np.float32(255)
    twice = 2 if size == "small" else 1
    source = raster(kind, "large")
    extent = SIZES[size] * twice
    scale = SIZES["large"] / (SIZES[size] * twice * SHRUNK)
    cosine, sine = np.cos(np.radians(turn)) * scale, np.sin(np.radians(turn)) * scale
    centre, middle = (extent - 1) / 2, (SIZES["large"] - 1) / 2
    # PIL samples at pixel centres: the half is in its own arithmetic
    matrix = (
        cosine, sine, middle + 0.5 - (cosine + sine) * (centre + 0.5),
        -sine, cosine, middle + 0.5 - (cosine - sine) * (centre + 0.5),
    )  # fmt: skip
    image = source.transform((extent, extent), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
    return np.asarray(image.reduce(twice) if twice > 1 else image, np.float32) / np.float32(255)


@functools.cache
def across(side: int) -> Field:
    """-1 to 1 over the box of a thing."""
    return np.linspace(-1, 1, side, dtype=np.float32)


def lit(glyph: Field, pose: Pose, tint: Sequence[float]) -> Field:
    """A turned glyph under its light."""
    glyph = glyph.copy()
    at = across(len(glyph))
    light = pose.light + pose.slope[0] * at + pose.slope[1] * at[:, None]
    glyph[..., :3] *= light[..., None] * np.asarray(tint, np.float32)
    np.minimum(glyph[..., :3], glyph[..., 3:], out=glyph[..., :3])  # no brighter than white
    return glyph


def shadow(alpha: Field, sun: float, upright: bool) -> tuple[Field, int, int]:
    """A thing's shadow `[h, w]`, and how far down and right of its own corner it begins."""
    side = len(alpha)
    if upright:  # on a wall it falls aside
        return blurred(np.pad(alpha, 4), 3) * 0.8, -4 + side // 12, -4 - round(sun * side / 9)
    height, wide = side // 4, side + side // 2
    flat = np.asarray(
        Image.fromarray(np.pad(alpha, ((0, 0), (side // 4, side // 4)))).transform(
            (wide, height), Image.Transform.AFFINE, (1, sun * 1.2, -sun * 1.2 * height / 2, 0, side / height, 0),
            Image.Resampling.BILINEAR,
        ), np.float32,
    )  # fmt: skip
    soft = blurred(np.pad(flat, 3), 3)
    filled = np.flatnonzero(alpha.max(1) > 0.3)  # it begins at the foot
    foot = int(filled[-1]) if len(filled) else side
    return soft, foot - height + 2 - 3 + height // 4, -side // 4 - 3 - round(sun * height / 2)


def window(top: int, left: int, height: int, width: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """The part of the canvas that a box covers, and the part of the box on the canvas."""
    rows, columns = slice(max(top, 0), min(top + height, SIDE)), slice(max(left, 0), min(left + width, SIDE))
    within = slice(rows.start - top, rows.stop - top), slice(columns.start - left, columns.stop - left)
    return (rows, columns), within


Things = Sequence[tuple[Item, Pose]]


def posed(items: Sequence[Item], sun: float, rng: np.random.Generator) -> Things:
    """Every thing as `rng` turns and lights it."""
    return [(item, Pose.random(rng, sun)) for item in items]


def cast(picture: Field, ground: Field, things: Things, setting: Setting, sun: float) -> None:
    """Darken a picture where shadows fall: all of them before anything is drawn, so that none falls on a thing."""
    for item, pose in things if ground.any() else ():
        alpha = turned(item.kind, item.size, pose.turn)[..., 3]
        dark, down, right = shadow(alpha, sun, setting.upright)
        here, part = window(item.y + down, item.x + right, *dark.shape)
        picture[here] *= 1 - SHADOW * (dark[part] * ground[here])[..., None]


def drawn(picture: Field, things: Things, tint: Sequence[float]) -> Field:
    """A picture `[128, 128, 3]` with things before it."""
    picture = picture.copy()
    for item, pose in things:
        glyph = lit(turned(item.kind, item.size, pose.turn), pose, tint)
        here, part = window(item.y, item.x, len(glyph), len(glyph))
        picture[here] *= 1 - glyph[part][..., 3:]
        picture[here] += glyph[part][..., :3]
    return picture
