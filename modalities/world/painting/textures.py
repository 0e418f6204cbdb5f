"""Procedural textures of settings: smooth noise, fractal noise and colour ramps, in numpy and PIL.

rng = np.random.default_rng(0)
colour_ramp(fractal_noise(rng, 3), (34, 84, 30), (138, 190, 84))          # [128, 128, 3] in 0..1
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Field = NDArray[np.float32]  # [H, W] or [H, W, C]

SIDE = 128  # pixels of an image in each direction
Y, X = (axis.astype(np.float32) / SIDE for axis in np.mgrid[:SIDE, :SIDE])


def resize_field(field: Field, height: int, width: int, resample: Image.Resampling = Image.Resampling.BICUBIC) -> Field:
    """Resize a field `[h, w]` to `[height, width]`."""
    return np.asarray(Image.fromarray(field).resize((width, height), resample), np.float32)


def smooth_noise(rng: np.random.Generator, rows: float, columns: float | None = None) -> Field:
    """Return smooth noise `[128, 128]` in about 0..1 with a number of periods down and across."""
    shape = (max(2, round(rows)) + 1, max(2, round(rows if columns is None else columns)) + 1)
    return resize_field(rng.random(shape, np.float32), SIDE, SIDE)


def fractal_noise(
    rng: np.random.Generator, periods: float, octaves: int = 5, gain: float = 0.55,
    stretch: tuple[float, float] = (1, 1),
) -> Field:  # fmt: skip
    """Return a sum of octaves of smooth noise in 0..1 with mean one half.

    Args:
        rng (np.random.Generator): the random generator.
        periods (float): number of periods of the first octave; every further octave has twice as many.
        octaves (int): number of octaves.
        gain (float): amplitude of an octave relative to the one before.
        stretch (tuple[float, float]): factors of the periods down and across, for textures with a direction.
    """
    total, weight, sum_of_weights = np.zeros((SIDE, SIDE), np.float32), 1.0, 0.0
    for octave in range(octaves):
        frequency = periods * 2**octave
        if max(frequency * stretch[0], frequency * stretch[1]) > SIDE:
            break
        total += weight * smooth_noise(rng, frequency * stretch[0], frequency * stretch[1])
        weight, sum_of_weights = weight * gain, sum_of_weights + weight
    return total / np.float32(sum_of_weights)


def colour_ramp(values: Field, *stops: tuple[int, int, int]) -> Field:
    """Map values in 0..1 to colours by linear interpolation.

    Args:
        values (Field): `[...]` in 0..1.
        stops (tuple[int, int, int]): evenly spaced RGB colours in 0..255.

    Returns:
        Field: `[..., 3]` in 0..1.
    """
    table = np.asarray(stops, np.float32) / 255
    scaled = np.clip(values, 0, 1) * np.float32(len(stops) - 1)
    low = np.minimum(scaled.astype(np.int64), len(stops) - 2)
    fraction = (scaled - low.astype(np.float32))[..., None]
    colours: Field = table[low] * (1 - fraction) + table[low + 1] * fraction
    return colours


def linear_step(values: Field, edge: float | Field, width: float) -> Field:
    """Return 0 below an edge, 1 above it, and a linear slope of a width in between."""
    return np.clip((values - edge) / np.float32(width) + np.float32(0.5), 0, 1)


def blend(below: Field, above: Field, share: Field) -> Field:
    """Blend an image over another by a share `[128, 128]`."""
    return below + share[..., None] * (above - below)


def blur_field(field: Field, pixels: float) -> Field:
    """Blur a field `[h, w]` by about so many pixels: shrink it and enlarge it again."""
    height, width = field.shape
    small = resize_field(field, max(1, round(height / pixels)), max(1, round(width / pixels)), Image.Resampling.BOX)
    return resize_field(small, height, width, Image.Resampling.BILINEAR)
