"""Which glyphs stand where in a picture, and whether that is what a composition asks for (prompt fidelity).

The matcher knows every glyph, so it needs no network: each (kind, size, grid position) is a template, and the scene is
the set of non-overlapping templates that lowers the picture's squared error most. What that scene leaves unexplained,
seen through an 8-pixel window, tells a blurred glyph from half a glyph, a melted one or a stranger.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polydraft.modalities.world.glyphs import KINDS, SIZES, sheet
from polydraft.modalities.world.scene import BACKGROUNDS, CANVAS, GRID, Composition, Placed, Scene, overlap, stands

Array = NDArray[np.float32]

COARSE = 2  # matching sees pixels averaged two by two: a decoder's blur and grain matter less, and it is faster
WINDOW = 8  # pixels; the eye that looks for unexplained patches
MIN_GAIN = 0.5
MAX_RESIDUE = 0.12


@dataclass(frozen=True)
class Candidate:
    """A template that fits: the squared error it removes (`gain`), and the same per squared error of the template."""

    item: Placed
    gain: float
    share: float


@dataclass(frozen=True)
class Verdict:
    """Prompt fidelity, part by part."""

    objects: bool  # exactly the asked kinds, in the asked sizes where the composition states them
    count: bool  # as many of each asked kind as asked
    relation: bool  # every object of the first group stands so to every one of the second
    background: bool
    clean: bool  # nothing in the picture but whole glyphs on the background

    @property
    def ok(self) -> bool:
        return self.objects and self.count and self.relation and self.background and self.clean


def coarse(picture: NDArray[np.uint8]) -> Array:
    """`[128, 128, 3]` uint8 to `[64, 64, 3]` in 0..1, averaged."""
    side = CANVAS // COARSE
    return picture.reshape(side, COARSE, side, COARSE, 3).mean((1, 3), dtype=np.float32) / np.float32(255)


@functools.cache
def templates(background: str, size: str) -> Array:
    """What every kind adds to the background, `[66, (S/2)*(S/2)*3]`."""
    side = SIZES[size] // COARSE
    glyphs = np.stack([sheet(size)[kind] for kind in KINDS])
    change = glyphs[..., 3:] * (glyphs[..., :3] - colour(background))
    return change.reshape(len(KINDS), side, COARSE, side, COARSE, 3).mean((2, 4)).reshape(len(KINDS), -1)


def colour(background: str) -> Array:
    return np.asarray(BACKGROUNDS[background], np.float32) / np.float32(255)


def find_background(pixels: Array) -> str:
    """The background colour most pixels are close to; pixels `[64, 64, 3]`."""
    colours = np.stack([colour(name) for name in BACKGROUNDS])
    distance = np.linalg.norm(pixels[:, :, None] - colours, axis=-1)
    votes = (distance < 0.15).sum((0, 1))
    return list(BACKGROUNDS)[int(votes.argmax())]


def find_candidates(change: Array, background: str, size: str) -> list[Candidate]:
    """Positions where a glyph of `size` fits better than a cell further; change `[64, 64, 3]` is picture - background."""
    side, step = SIZES[size] // COARSE, GRID // COARSE
    known = templates(background, size)
    boxes = np.lib.stride_tricks.sliding_window_view(change, (side, side), (0, 1))[::step, ::step]
    boxes = boxes.transpose(0, 1, 3, 4, 2).reshape(*boxes.shape[:2], -1)  # [P, P, (S/2)*(S/2)*3]
    energy = np.square(known).sum(1)
    gains = 2 * boxes @ known.T - energy  # |box|^2 - |box - template|^2, [P, P, 66]
    kinds = gains.argmax(-1)
    best = gains.max(-1)
    around = np.lib.stride_tricks.sliding_window_view(np.pad(best, 1, constant_values=-np.inf), (3, 3)).max((-2, -1))
    peaks = np.argwhere((best == around) & (best >= MIN_GAIN * energy[kinds]))
    return [
        Candidate(
            Placed(list(KINDS)[kinds[row, column]], size, int(column) * GRID, int(row) * GRID),
            float(best[row, column]),
            float(best[row, column] / energy[kinds[row, column]]),
        )
        for row, column in peaks
    ]


def best_set(candidates: list[Candidate]) -> tuple[float, list[Candidate]]:
    """The non-overlapping candidates with the largest total gain (strongest first in `candidates`).

    Either the strongest is in the set or something that overlaps it is: a glyph may lose to two smaller ones together.
    """
    if not candidates:
        return 0.0, []
    best: tuple[float, list[Candidate]] = (0.0, [])
    for choice in (other for other in candidates if overlap(other.item, candidates[0].item)):
        rest = [other for other in candidates if not overlap(other.item, choice.item)]
        gain, chosen = best_set(rest)
        if choice.gain + gain > best[0]:
            best = (choice.gain + gain, [choice, *chosen])
    return best


def find(picture: NDArray[np.uint8]) -> Scene:
    """The scene in a `[128, 128, 3]` uint8 picture."""
    pixels = coarse(picture)
    background = find_background(pixels)
    change = pixels - colour(background)
    candidates = [found for size in SIZES for found in find_candidates(change, background, size)]
    _, chosen = best_set(sorted(candidates, key=lambda found: -found.gain)[:24])
    return Scene(background, tuple(found.item for found in chosen))


def residue(picture: NDArray[np.uint8], scene: Scene) -> float:
    """How far the picture strays from `scene` where it strays most: RMS over channels of 8x8-pixel means, 0..1."""
    error = coarse(picture) - coarse(scene.render())
    side = WINDOW // COARSE
    windows = np.lib.stride_tricks.sliding_window_view(error, (side, side), (0, 1)).mean((-2, -1))
    return float(np.sqrt(np.square(windows).mean(-1)).max())
