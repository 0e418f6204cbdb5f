"""What a picture's things stand on or before, and which patches are none of that: by likeness to rendered grounds.

    name = Grounds(("blue", "grass")).name(picture)      # [128, 128, 3] uint8
    strange = strangeness(picture, name)                 # [31, 31]

Every ground is known by patches of it, rendered when first asked for: in the light and in shadow, sharp and blurred.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.painting.staging import cast, posed
from polydraft.modalities.world.painting.textures import Field, blurred
from polydraft.modalities.world.scene import BACKGROUNDS, CANVAS, Scene, place, random_composition, to_bytes

COARSE = 2  # pictures are read averaged two by two
PATCH, STEP = 4, 2  # of such pixels: patches of 8x8 pixels, every 4
EXAMPLES, PATCHES = 24, 320  # pictures a ground, and patches of each
SURE, CAP = 2e-4, 0.02  # squared distances at which nearer says no more, and farther: no part of that ground
FEW = 4  # of so many known patches one is enough to tell grounds apart
# What a feature counts beside the mean colour: contrast, slopes across and down, and how far down the picture it is.
WEIGHTS = np.array([1, 1, 1, 0.8, 1, 1, 0.1], np.float32)
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
BINS, WIDER = 24, 6  # of colours, a channel; and how often they are smoothed for those not seen


def coarse(picture: NDArray[np.uint8]) -> Field:
    """`[128, 128, 3]` uint8 to `[64, 64, 3]` in 0..1, averaged."""
    side = CANVAS // COARSE
    mean: Field = picture.reshape(side, COARSE, side, COARSE, 3).mean((1, 3), dtype=np.float32) / np.float32(255)
    return mean


def patches(pixels: Field) -> Field:
    """Features of every patch, `[31, 31, 7]`; pixels `[64, 64, 3]`."""
    luma = pixels @ LUMA
    slopes = np.abs(np.diff(luma, axis=1, append=luma[:, -1:])), np.abs(np.diff(luma, axis=0, append=luma[-1:]))
    planes = np.stack([*np.moveaxis(pixels, -1, 0), np.square(luma), *slopes])
    windows = np.lib.stride_tricks.sliding_window_view(planes, (PATCH, PATCH), (1, 2))[:, ::STEP, ::STEP]
    means = windows.mean((-2, -1))
    spread = np.sqrt(np.maximum(means[3] - np.square(np.tensordot(LUMA, means[:3], 1)), 0))
    down = np.broadcast_to(np.linspace(0, 1, means.shape[1], dtype=np.float32)[:, None], means.shape[1:])
    found: Field = np.stack([*means[:3], spread, *means[4:], down], -1).astype(np.float32) * WEIGHTS
    return found


def worn(picture: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """The picture as a tokenizer may leave it: between sharp and blurred, with a little noise."""
    pixels = picture.astype(np.float32)
    soft = np.stack([blurred(channel, 2) for channel in np.moveaxis(pixels, -1, 0)], -1)
    pixels += rng.uniform(0, 1) * (soft - pixels) + rng.normal(0, rng.uniform(0, 5), pixels.shape)
    return (np.clip(pixels, 0, 255) + 0.5).astype(np.uint8)


def bare(name: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A ground with the shadows of things that are not there."""
    if name in BACKGROUNDS:
        return Scene(name, ()).render()
    setting, sun = SETTINGS[name], float(rng.uniform(-1, 1))
    picture, ground = setting.paint(rng)
    items = place(random_composition(rng, backgrounds=(name,)), rng).objects
    cast(picture, ground, posed(items, sun, rng), setting, sun)
    return to_bytes(picture)


@dataclass(frozen=True)
class Ground:
    """patches: `[N, 7]` known ones. density: log of how dense its colours are, `[BINS, BINS, BINS]`."""

    patches: Field
    density: Field

    @staticmethod
    @functools.cache
    def of(name: str) -> Ground:
        rng = np.random.default_rng(list(name.encode()))
        found, colours = [], []
        for index in range(EXAMPLES):
            picture = bare(name, rng)
            if index % 3:
                picture = worn(picture, rng)
            pixels = coarse(picture)
            colours.append(pixels.reshape(-1, 3))
            every = patches(pixels).reshape(-1, len(WEIGHTS))
            found.append(every[rng.choice(len(every), PATCHES, replace=False)])
        return Ground(np.concatenate(found), density(np.concatenate(colours)))

    def far(self, features: Field, every: int = 1) -> Field:
        """Squared distances of patches `[..., 7]` to the nearest of `every` so manieth known one."""
        flat, known = features.reshape(-1, features.shape[-1]), self.patches[::every]
        squares = np.square(flat).sum(1)[:, None] - 2 * flat @ known.T + np.square(known).sum(1)
        nearest: Field = np.maximum(squares.min(1), 0).reshape(features.shape[:-1])
        return nearest

    def likelihood(self, pixels: Field) -> Field:
        """Log density of colours `[..., 3]`."""
        at = np.minimum((pixels * BINS).astype(np.int64), BINS - 1)
        found: Field = self.density[at[..., 0], at[..., 1], at[..., 2]]
        return found


def density(colours: Field) -> Field:
    """Log of how dense colours `[N, 3]` in 0..1 are: a smoothed histogram, a wider one (a few pictures do not show all
    colours of a ground), and a little of everything."""
    at = np.minimum((colours * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(np.ravel_multi_index(tuple(at.T), (BINS,) * 3), minlength=BINS**3).reshape((BINS,) * 3)
    near = smoothed((counts / len(colours)).astype(np.float32))
    wide = near
    for _ in range(WIDER):
        wide = smoothed(wide)
    found: Field = np.log((0.78 * near + 0.2 * wide) * BINS**3 + 0.02).astype(np.float32)
    return found


def smoothed(histogram: Field) -> Field:
    """`[N, N, N]`, with half of every bin's content in its neighbours."""
    for axis in range(3):
        padded = np.pad(histogram, [(1, 1) if other == axis else (0, 0) for other in range(3)], mode="edge")
        low, here, high = (padded.take(range(shift, shift + BINS), axis) for shift in range(3))
        histogram = (0.25 * low + 0.5 * here + 0.25 * high).astype(np.float32)
    return histogram


@dataclass(frozen=True)
class Grounds:
    """The grounds that there are to choose among."""

    names: tuple[str, ...]

    def name(self, picture: NDArray[np.uint8]) -> str:
        """The one that most of a picture is like; things are like none, and decide nothing."""
        features = patches(coarse(picture))[::2, ::2]
        scores = [np.log(np.clip(Ground.of(name).far(features, FEW), SURE, CAP)).sum() for name in self.names]
        return self.names[int(np.argmin(scores))]


def strangeness(picture: NDArray[np.uint8], name: str) -> Field:
    """How far every patch is from all known ones of a ground, `[31, 31]`."""
    return np.sqrt(Ground.of(name).far(patches(coarse(picture))))
