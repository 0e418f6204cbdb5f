"""What settings are painted with: smooth noise, its sum over octaves, ramps of colour. numpy and PIL, nothing learnt.

rng = np.random.default_rng(0)
ramp(fractal(rng, 3), (34, 84, 30), (138, 190, 84))          # [128, 128, 3] in 0..1
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Field = NDArray[np.float32]

SIDE = 128  # pixels of a picture, each way
Y, X = (axis.astype(np.float32) / SIDE for axis in np.mgrid[:SIDE, :SIDE])


def resized(field: Field, height: int, width: int, how: Image.Resampling = Image.Resampling.BICUBIC) -> Field:
    """A field `[h, w]` as `[height, width]`."""
    return np.asarray(Image.fromarray(field).resize((width, height), how), np.float32)


def noise(rng: np.random.Generator, rows: float, columns: float | None = None) -> Field:
    """Smooth noise in about 0..1, `[128, 128]`, with so many swings down and across."""
    shape = (max(2, round(rows)) + 1, max(2, round(rows if columns is None else columns)) + 1)
    return resized(rng.random(shape, np.float32), SIDE, SIDE)


def fractal(
    rng: np.random.Generator, swings: float, octaves: int = 5, gain: float = 0.55, stretch: tuple[float, float] = (1, 1)
) -> Field:
    """Noise at `swings` and its doubles, each octave `gain` times as strong; in 0..1, mean one half.

    stretch: of swings down and across, for what lies in one direction.
    """
    total, weight, sum_of_weights = np.zeros((SIDE, SIDE), np.float32), 1.0, 0.0
    for octave in range(octaves):
        at = swings * 2**octave
        if max(at * stretch[0], at * stretch[1]) > SIDE:
            break
        total += weight * noise(rng, at * stretch[0], at * stretch[1])
        weight, sum_of_weights = weight * gain, sum_of_weights + weight
    return total / np.float32(sum_of_weights)


def ramp(at: Field, *stops: tuple[int, int, int]) -> Field:
    """Colours along `at` in 0..1, evenly spaced stops in 0..255: `[..., 3]` in 0..1."""
    table = np.asarray(stops, np.float32) / 255
    place = np.clip(at, 0, 1) * np.float32(len(stops) - 1)
    low = np.minimum(place.astype(np.int64), len(stops) - 2)
    part = (place - low.astype(np.float32))[..., None]
    mixed: Field = table[low] * (1 - part) + table[low + 1] * part
    return mixed


def step(at: Field, edge: float | Field, width: float) -> Field:
    """0 below an edge, 1 above it, and a straight slope `width` wide between."""
    return np.clip((at - edge) / np.float32(width) + np.float32(0.5), 0, 1)


def mix(below: Field, above: Field, share: Field) -> Field:
    """One picture over another, by share `[128, 128]`."""
    return below + share[..., None] * (above - below)


def blurred(field: Field, pixels: float) -> Field:
    """A field `[h, w]` through about so wide a brush: made small, and large again."""
    height, width = field.shape
    small = resized(field, max(1, round(height / pixels)), max(1, round(width / pixels)), Image.Resampling.BOX)
    return resized(small, height, width, Image.Resampling.BILINEAR)
