"""Background classification by patches: which background an image has, and which patches do not belong to it.

    name = BackgroundClassifier(("blue", "grass")).classify(image)      # [128, 128, 3] uint8
    distances = distances_to_background(image, name)                     # [31, 31]

Every background is modelled by patches of rendered examples: lit and in shadow, sharp and blurred. They are rendered
when first needed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.painting.staging import cast_shadows, pose_items
from polydraft.modalities.world.painting.textures import Field, blur_field
from polydraft.modalities.world.scene import BACKGROUNDS, CANVAS, Scene, place_objects, random_composition, to_uint8

COARSE = 2  # images are averaged over 2x2 pixels
PATCH, STEP = 4, 2  # in averaged pixels: patches of 8x8 image pixels, every 4
NUM_IMAGES, NUM_PATCHES = 24, 320  # images per background, and patches of each
MIN_DISTANCE, MAX_DISTANCE = 2e-4, 0.02  # squared distances are clipped to these: nearer or farther adds no evidence
PATCH_STRIDE = 4  # every fourth known patch is enough to classify
# Weights of the features: mean colour (3), contrast, gradients across and down, and the vertical position.
WEIGHTS = np.array([1, 1, 1, 0.8, 1, 1, 0.1], np.float32)
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
BINS, NUM_SMOOTHINGS = 24, 6  # of colours per channel; smoothing passes for unseen colours


def downsample(picture: NDArray[np.uint8]) -> Field:
    """Average an image [128, 128, 3] uint8 to [64, 64, 3] in 0..1."""
    side = CANVAS // COARSE
    mean: Field = picture.reshape(side, COARSE, side, COARSE, 3).mean((1, 3), dtype=np.float32) / np.float32(255)
    return mean


def patch_features(pixels: Field) -> Field:
    """Return the features [31, 31, 7] of every patch of `pixels` [64, 64, 3]."""
    luma = pixels @ LUMA
    slopes = np.abs(np.diff(luma, axis=1, append=luma[:, -1:])), np.abs(np.diff(luma, axis=0, append=luma[-1:]))
    planes = np.stack([*np.moveaxis(pixels, -1, 0), np.square(luma), *slopes])
    windows = np.lib.stride_tricks.sliding_window_view(planes, (PATCH, PATCH), (1, 2))[:, ::STEP, ::STEP]
    means = windows.mean((-2, -1))
    spread = np.sqrt(np.maximum(means[3] - np.square(np.tensordot(LUMA, means[:3], 1)), 0))
    down = np.broadcast_to(np.linspace(0, 1, means.shape[1], dtype=np.float32)[:, None], means.shape[1:])
    found: Field = np.stack([*means[:3], spread, *means[4:], down], -1).astype(np.float32) * WEIGHTS
    return found


def degrade_image(picture: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Blur an image randomly and add a little noise, as a tokenizer may do."""
    pixels = picture.astype(np.float32)
    soft = np.stack([blur_field(channel, 2) for channel in np.moveaxis(pixels, -1, 0)], -1)
    pixels += rng.uniform(0, 1) * (soft - pixels) + rng.normal(0, rng.uniform(0, 5), pixels.shape)
    return (np.clip(pixels, 0, 255) + 0.5).astype(np.uint8)


def render_empty(name: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Render a background with shadows of objects that are absent."""
    if name in BACKGROUNDS:
        return Scene(name, ()).render()
    setting, sun = SETTINGS[name], float(rng.uniform(-1, 1))
    picture, ground = setting.paint(rng)
    items = place_objects(random_composition(rng, backgrounds=(name,)), rng).objects
    cast_shadows(picture, ground, pose_items(items, sun, rng), setting, sun)
    return to_uint8(picture)


@dataclass(frozen=True)
class BackgroundModel:
    """Patches and colour density of a background."""

    patches: Field  # [N, 7] features of known patches
    density: Field  # [BINS, BINS, BINS] log density of colours

    @staticmethod
    @functools.cache
    def for_background(name: str) -> BackgroundModel:
        """Render examples of a background and collect their statistics."""
        rng = np.random.default_rng(list(name.encode()))
        found, colours = [], []
        for index in range(NUM_IMAGES):
            picture = render_empty(name, rng)
            if index % 3:
                picture = degrade_image(picture, rng)
            pixels = downsample(picture)
            colours.append(pixels.reshape(-1, 3))
            every = patch_features(pixels).reshape(-1, len(WEIGHTS))
            found.append(every[rng.choice(len(every), NUM_PATCHES, replace=False)])
        return BackgroundModel(np.concatenate(found), colour_log_density(np.concatenate(colours)))

    def patch_distances(self, features: Field, every: int = 1) -> Field:
        """Return squared distances of patches [..., 7] to the nearest known patch; `every` is a stride over these."""
        flat, known = features.reshape(-1, features.shape[-1]), self.patches[::every]
        squares = np.square(flat).sum(1)[:, None] - 2 * flat @ known.T + np.square(known).sum(1)
        nearest: Field = np.maximum(squares.min(1), 0).reshape(features.shape[:-1])
        return nearest

    def log_density(self, pixels: Field) -> Field:
        """Return the log density of colours [..., 3]."""
        at = np.minimum((pixels * BINS).astype(np.int64), BINS - 1)
        found: Field = self.density[at[..., 0], at[..., 1], at[..., 2]]
        return found


def colour_log_density(colours: Field) -> Field:
    """Return the log density of colours [N, 3] in 0..1 as a histogram [BINS, BINS, BINS].

    It mixes a smoothed histogram, a wider one, as a few images do not show all colours of a background, and a uniform
    density.
    """
    at = np.minimum((colours * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(np.ravel_multi_index(tuple(at.T), (BINS,) * 3), minlength=BINS**3).reshape((BINS,) * 3)
    near = smooth_histogram((counts / len(colours)).astype(np.float32))
    wide = near
    for _ in range(NUM_SMOOTHINGS):
        wide = smooth_histogram(wide)
    found: Field = np.log((0.78 * near + 0.2 * wide) * BINS**3 + 0.02).astype(np.float32)
    return found


def smooth_histogram(histogram: Field) -> Field:
    """Move half of the content of every bin of a histogram [N, N, N] to its neighbours."""
    for axis in range(3):
        padded = np.pad(histogram, [(1, 1) if other == axis else (0, 0) for other in range(3)], mode="edge")
        low, here, high = (padded.take(range(shift, shift + BINS), axis) for shift in range(3))
        histogram = (0.25 * low + 0.5 * here + 0.25 * high).astype(np.float32)
    return histogram


@dataclass(frozen=True)
class BackgroundClassifier:
    """Nearest-patch classifier over a set of backgrounds."""

    names: tuple[str, ...]

    def classify(self, picture: NDArray[np.uint8]) -> str:
        """Return the background nearest to most patches; objects are far from all and do not affect it."""
        features = patch_features(downsample(picture))[::2, ::2]
        distances = [
            BackgroundModel.for_background(name).patch_distances(features, PATCH_STRIDE) for name in self.names
        ]
        scores = [np.log(np.clip(squares, MIN_DISTANCE, MAX_DISTANCE)).sum() for squares in distances]
        return self.names[int(np.argmin(scores))]


def distances_to_background(picture: NDArray[np.uint8], name: str) -> Field:
    """Return the distance [31, 31] of every patch to the nearest known patch of a background."""
    return np.sqrt(BackgroundModel.for_background(name).patch_distances(patch_features(downsample(picture))))
