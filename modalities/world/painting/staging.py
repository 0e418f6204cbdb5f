"""Placing objects into a setting: slightly rotated, lit from one side, with soft shadows.

items = pose_items(objects, sun, rng)
cast_shadows(background, shadow_strength, items, setting, sun)
draw_items(background, items, setting.tint)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from PIL import Image

from polydraft.modalities.world.glyphs import GLYPH_SIZES, load_sheet
from polydraft.modalities.world.painting.settings import Setting
from polydraft.modalities.world.painting.textures import SIDE, Field, blur_field

ANGLES = (-5.0, 0.0, 5.0)  # degrees; few, so that the first cells of an object determine the others
ROTATION_SCALE = 0.94  # keeps a rotated object within its box
BRIGHTNESS = (0.95, 1.05)
MAX_SLOPE = 0.06  # largest change of brightness from the middle of an object to its side
SHADOW_STRENGTH = 0.42  # share of the light that shadows take away


class Item(Protocol):
    """Object with the top-left corner of its box."""

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
    """Rotation and lighting of an object."""

    angle: float = 0.0  # degrees
    light: float = 1.0  # brightness in the middle
    slope: tuple[float, float] = (0.0, 0.0)  # change of brightness to the right edge and to the bottom edge

    @staticmethod
    def random(rng: np.random.Generator, sun: float) -> Pose:
        """Sample a pose; `sun` is the direction of the light, from -1 (left) to 1."""
        angle, light = ANGLES[int(rng.integers(len(ANGLES)))], rng.uniform(*BRIGHTNESS)
        return Pose(angle, float(light), (MAX_SLOPE * sun, -MAX_SLOPE * float(rng.uniform(0, 1))))


@functools.cache
def premultiplied_glyph(kind: str, size: str) -> Image.Image:
    """Return a glyph with premultiplied colours, in which images are resampled."""
    pixels = (load_sheet(size)[kind] * 255 + 0.5).astype(np.uint8)
    return Image.fromarray(pixels, "RGBA").convert("RGBa")


@functools.cache
def rotated_glyph(kind: str, size: str, angle: float) -> Field:
    """Return a glyph rotated about its middle, `[S, S, 4]` in 0..1 with premultiplied colours.

    The array is cached and must not be changed. Small glyphs are rotated at twice their size from the large raster, so
    that rotation costs no sharpness.
    """
    if not angle:
        return np.asarray(premultiplied_glyph(kind, size), np.float32) / np.float32(255)
    twice = 2 if size == "small" else 1
    source = premultiplied_glyph(kind, "large")
    extent = GLYPH_SIZES[size] * twice
    scale = GLYPH_SIZES["large"] / (GLYPH_SIZES[size] * twice * ROTATION_SCALE)
    cosine, sine = np.cos(np.radians(angle)) * scale, np.sin(np.radians(angle)) * scale
    centre, middle = (extent - 1) / 2, (GLYPH_SIZES["large"] - 1) / 2
    # PIL samples at pixel centres, hence the halves.
    matrix = (
        cosine, sine, middle + 0.5 - (cosine + sine) * (centre + 0.5),
        -sine, cosine, middle + 0.5 - (cosine - sine) * (centre + 0.5),
    )  # fmt: skip
    image = source.transform((extent, extent), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
    return np.asarray(image.reduce(twice) if twice > 1 else image, np.float32) / np.float32(255)


@functools.cache
def box_ramp(side: int) -> Field:
    """Return a ramp from -1 to 1 over the box of an object."""
    return np.linspace(-1, 1, side, dtype=np.float32)


def light_glyph(glyph: Field, pose: Pose, tint: Sequence[float]) -> Field:
    """Return a rotated glyph with its lighting applied."""
    glyph = glyph.copy()
    ramp = box_ramp(len(glyph))
    light = pose.light + pose.slope[0] * ramp + pose.slope[1] * ramp[:, None]
    glyph[..., :3] *= light[..., None] * np.asarray(tint, np.float32)
    np.minimum(glyph[..., :3], glyph[..., 3:], out=glyph[..., :3])  # no brighter than white
    return glyph


def shadow_mask(alpha: Field, sun: float, upright: bool) -> tuple[Field, int, int]:
    """Return the shadow of an object.

    Args:
        alpha (Field): `[S, S]` alpha of the rotated glyph.
        sun (float): direction of the light, from -1 (left) to 1.
        upright (bool): whether the shadow falls on a wall.

    Returns:
        tuple[Field, int, int]: `[h, w]` shadow, and its offset down and right from the object's corner.
    """
    side = len(alpha)
    if upright:  # on a wall it falls to the side
        return blur_field(np.pad(alpha, 4), 3) * 0.8, -4 + side // 12, -4 - round(sun * side / 9)
    height, wide = side // 4, side + side // 2
    flat = np.asarray(
        Image.fromarray(np.pad(alpha, ((0, 0), (side // 4, side // 4)))).transform(
            (wide, height), Image.Transform.AFFINE, (1, sun * 1.2, -sun * 1.2 * height / 2, 0, side / height, 0),
            Image.Resampling.BILINEAR,
        ), np.float32,
    )  # fmt: skip
    soft = blur_field(np.pad(flat, 3), 3)
    filled = np.flatnonzero(alpha.max(1) > 0.3)  # it begins at the lowest opaque line
    foot = int(filled[-1]) if len(filled) else side
    return soft, foot - height + 2 - 3 + height // 4, -side // 4 - 3 - round(sun * height / 2)


def clip_to_canvas(top: int, left: int, height: int, width: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Return the slices of the canvas that a box covers, and the slices of the box on the canvas."""
    rows, columns = slice(max(top, 0), min(top + height, SIDE)), slice(max(left, 0), min(left + width, SIDE))
    within = slice(rows.start - top, rows.stop - top), slice(columns.start - left, columns.stop - left)
    return (rows, columns), within


PosedItems = Sequence[tuple[Item, Pose]]


def pose_items(items: Sequence[Item], sun: float, rng: np.random.Generator) -> PosedItems:
    """Sample a pose for every object."""
    return [(item, Pose.random(rng, sun)) for item in items]


def cast_shadows(background: Field, strength: Field, items: PosedItems, setting: Setting, sun: float) -> None:
    """Darken a background in place where shadows fall, before objects are drawn, so that no shadow falls on one.

    Args:
        background (Field): `[128, 128, 3]` in 0..1.
        strength (Field): `[128, 128]` strength of shadows.
        items (PosedItems): the objects.
        setting (Setting): the setting.
        sun (float): direction of the light, from -1 (left) to 1.
    """
    for item, pose in items if strength.any() else ():
        alpha = rotated_glyph(item.kind, item.size, pose.angle)[..., 3]
        dark, down, right = shadow_mask(alpha, sun, setting.upright)
        canvas, part = clip_to_canvas(item.y + down, item.x + right, *dark.shape)
        background[canvas] *= 1 - SHADOW_STRENGTH * (dark[part] * strength[canvas])[..., None]


def draw_items(background: Field, items: PosedItems, tint: Sequence[float]) -> Field:
    """Return the background `[128, 128, 3]` with objects drawn over it."""
    image = background.copy()
    for item, pose in items:
        glyph = light_glyph(rotated_glyph(item.kind, item.size, pose.angle), pose, tint)
        canvas, part = clip_to_canvas(item.y, item.x, len(glyph), len(glyph))
        image[canvas] *= 1 - glyph[part][..., 3:]
        image[canvas] += glyph[part][..., :3]
    return image
