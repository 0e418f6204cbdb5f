"""Template matching of glyphs in flat images, and prompt fidelity: whether a scene is what a composition asks for.

The matcher knows every glyph, so it needs no network: each (kind, size, grid position) is a template, and the scene is
the set of non-overlapping templates that lowers the image's squared error most. The residual, averaged in 8-pixel
windows, distinguishes a blurred glyph from half a glyph, a blend of two, or an unknown one.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS, load_sheet
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    CANVAS,
    GRID,
    Composition,
    PlacedObject,
    Scene,
    boxes_overlap,
    is_in_relation,
)

Array = NDArray[np.float32]

COARSE = 2  # matching sees pixels averaged two by two: a decoder's blur and grain matter less, and it is faster
WINDOW = 8  # pixels; residuals are averaged in such windows
MAX_CANDIDATES = 16  # a scene of three objects gives at most 12; noise could give hundreds, and the search branches

# Measured on 240 scenes (544 objects) decoded by the tiny VQ tokenizer (median 31 dB over the picture, worst 25.6), the
# same scenes blurred with noise at 24 and 22 dB, and 240 wrong ones of every sort below. "Share" is the part of a
# template's energy that its fit removes, "residue" the largest 8x8-pixel mean error of the matched scene.
#
# Share of whole glyphs: 0.6 to 1 under blur and noise; through the tokenizer 0.58 to 1 (5th percentile up), under 0.3
# only for 4 thin or pale objects (bicycle, pizza on orange). Half a glyph has about 0, an unknown glyph less.
MIN_SHARE = 0.3
# Share of the worse half of a glyph: 0.48 at least under blur and noise, 0.15 through the tokenizer (0.5th percentile;
# median 0.84). Half glyphs that still match as whole ones: 0.09 at most for 19 in 20.
MIN_HALF_SHARE = 0.1
# Residue on and around objects: 0.05 at most under blur and noise, 0.102 through the tokenizer (99th percentile).
# Glyphs cut together from 0.138, unknown blobs from 0.150, blends from 0.103 (median 0.21), wavy ones median 0.23.
MAX_RESIDUE = 0.11
# Residue clear of all objects: 0.032 at most under noise, 0.030 through the tokenizer, which keeps flat colour flat.
MAX_STRAY = 0.05
CLOSE = 0.1  # RGB distance at which a pixel still counts as background; no two backgrounds are within 0.21


@dataclass(frozen=True)
class MatchCandidate:
    """A template that fits, and the squared error it removes."""

    item: PlacedObject
    gain: float


@dataclass(frozen=True)
class FidelityResult:
    """Prompt fidelity by criterion."""

    objects: bool  # exactly the requested kinds, in the requested sizes where the composition states them
    count: bool  # the requested number of each kind
    relation: bool  # holds for every object of the first group and every one of the second
    background: bool
    clean: bool  # nothing but whole glyphs on the background

    @property
    def ok(self) -> bool:
        return self.objects and self.count and self.relation and self.background and self.clean


def downsample(picture: NDArray[np.uint8]) -> Array:
    """Average an image [128, 128, 3] uint8 to [64, 64, 3] in 0..1."""
    side = CANVAS // COARSE
    return picture.reshape(side, COARSE, side, COARSE, 3).mean((1, 3), dtype=np.float32) / np.float32(255)


@functools.cache
def templates(background: str, size: str) -> Array:
    """Return the change [66, (S/2)*(S/2)*3] that every kind makes to the background."""
    side = GLYPH_SIZES[size] // COARSE
    glyphs = np.stack([load_sheet(size)[kind] for kind in KINDS])
    change = glyphs[..., 3:] * (glyphs[..., :3] - background_colour(background))
    return change.reshape(len(KINDS), side, COARSE, side, COARSE, 3).mean((2, 4)).reshape(len(KINDS), -1)


def background_colour(background: str) -> Array:
    return np.asarray(BACKGROUNDS[background], np.float32) / np.float32(255)


def find_background(pixels: Array) -> str:
    """Return the background colour that most of `pixels` [64, 64, 3] are close to."""
    colours = np.stack([background_colour(name) for name in BACKGROUNDS])
    distance = np.linalg.norm(pixels[:, :, None] - colours, axis=-1)
    votes = (distance < CLOSE).sum((0, 1))
    return list(BACKGROUNDS)[int(votes.argmax())]


def find_candidates(change: Array, background: str, size: str) -> list[MatchCandidate]:
    """Return local maxima of the fit of glyphs of `size`; `change` [64, 64, 3] is image - background."""
    side, step = GLYPH_SIZES[size] // COARSE, GRID // COARSE
    known = templates(background, size)
    boxes = np.lib.stride_tricks.sliding_window_view(change, (side, side), (0, 1))[::step, ::step]
    boxes = boxes.transpose(0, 1, 3, 4, 2).reshape(*boxes.shape[:2], -1)  # [P, P, (S/2)*(S/2)*3]
    energy = np.square(known).sum(1)
    gains = 2 * boxes @ known.T - energy  # |box|^2 - |box - template|^2, [P, P, 66]
    kinds = gains.argmax(-1)
    best = gains.max(-1)
    around = np.lib.stride_tricks.sliding_window_view(np.pad(best, 1, constant_values=-np.inf), (3, 3)).max((-2, -1))
    peaks = np.argwhere((best == around) & (best >= MIN_SHARE * energy[kinds]))
    return [
        MatchCandidate(
            PlacedObject(list(KINDS)[kinds[row, column]], size, int(column) * GRID, int(row) * GRID),
            float(best[row, column]),
        )
        for row, column in peaks
    ]


def best_disjoint_set(candidates: list[MatchCandidate]) -> tuple[float, list[MatchCandidate]]:
    """Return the non-overlapping candidates with the largest total gain; `candidates` are sorted by gain.

    Either the strongest is in the set or one that overlaps it is: a glyph may lose to two smaller ones together.
    """
    if not candidates:
        return 0.0, []
    best: tuple[float, list[MatchCandidate]] = (0.0, [])
    for choice in (other for other in candidates if boxes_overlap(other.item, candidates[0].item)):
        rest = [other for other in candidates if not boxes_overlap(other.item, choice.item)]
        gain, chosen = best_disjoint_set(rest)
        if choice.gain + gain > best[0]:
            best = (choice.gain + gain, [choice, *chosen])
    return best


def match_scene(picture: NDArray[np.uint8]) -> Scene:
    """Return the scene in an image [128, 128, 3] uint8."""
    pixels = downsample(picture)
    background = find_background(pixels)
    change = pixels - background_colour(background)
    candidates = [found for size in GLYPH_SIZES for found in find_candidates(change, background, size)]
    _, chosen = best_disjoint_set(sorted(candidates, key=lambda found: -found.gain)[:MAX_CANDIDATES])
    return Scene(background, tuple(found.item for found in chosen))


def residual_errors(picture: NDArray[np.uint8], scene: Scene) -> tuple[float, float]:
    """Return the largest error against `scene`, on and around objects, and clear of them.

    Errors are RMS over channels of 8x8-pixel means, 0..1: decoding blur averages out, a missing ear does not.
    """
    side = WINDOW // COARSE
    error = downsample(picture) - downsample(scene.render())
    means = np.lib.stride_tricks.sliding_window_view(error, (side, side), (0, 1)).mean((-2, -1))
    strength = np.sqrt(np.square(means).mean(-1))
    occupied = np.zeros(error.shape[:2], bool)
    for item in scene.objects:
        occupied[object_slices(item)] = True
    near = np.lib.stride_tricks.sliding_window_view(occupied, (side, side)).any((-2, -1))
    return float(strength[near].max(initial=0)), float(strength[~near].max(initial=0))


def object_slices(item: PlacedObject) -> tuple[slice, slice]:
    """Return the object's rows and columns in the downsampled image."""
    top, left, side = item.y // COARSE, item.x // COARSE, item.side // COARSE
    return slice(top, top + side), slice(left, left + side)


def worse_half_share(change: Array, background: str, item: PlacedObject) -> float:
    """Return the smallest share of the glyph's upper, lower, left and right half, each half of its energy."""
    side = item.side // COARSE
    known = templates(background, item.size)[list(KINDS).index(item.kind)].reshape(side, side, 3)
    energy = np.square(known).sum(-1)
    gain = 2 * (known * change[object_slices(item)]).sum(-1) - energy
    shares = []
    for axis in (0, 1):
        weights, gains = energy.sum(axis), gain.sum(axis)
        cut = int(np.searchsorted(weights.cumsum(), weights.sum() / 2))
        shares += [gains[:cut].sum() / weights[:cut].sum(), gains[cut:].sum() / weights[cut:].sum()]
    return float(min(shares))


def is_clean(picture: NDArray[np.uint8], scene: Scene) -> bool:
    """Return whether the image shows nothing but the scene's objects, each of them whole."""
    near, clear = residual_errors(picture, scene)
    change = downsample(picture) - background_colour(scene.background)
    whole = all(worse_half_share(change, scene.background, item) >= MIN_HALF_SHARE for item in scene.objects)
    return near <= MAX_RESIDUE and clear <= MAX_STRAY and whole


def judge_flat_image(picture: NDArray[np.uint8], composition: Composition) -> FidelityResult:
    """Judge whether a flat image [128, 128, 3] uint8 shows all of `composition` and nothing else."""
    scene = match_scene(picture)
    return compare_scene(scene, composition, clean=is_clean(picture, scene))


def compare_scene(scene: Scene, composition: Composition, clean: bool = True) -> FidelityResult:
    """Compare a known scene with a composition, whose groups differ in kind, as in the grammar."""
    found = Counter(item.kind for item in scene.objects)
    requested = {group.kind: group for group in composition.groups}
    return FidelityResult(
        objects=set(found) == set(requested)
        and all(requested[item.kind].size in (None, item.size) for item in scene.objects),
        count=all(found[kind] == group.count for kind, group in requested.items()),
        relation=relation_holds(scene, composition),
        background=scene.background == composition.background,
        clean=clean,
    )


def relation_holds(scene: Scene, composition: Composition) -> bool:
    if composition.relation is None:
        return True
    first, second = ([item for item in scene.objects if item.kind == group.kind] for group in composition.groups)
    return bool(first and second) and all(is_in_relation(a, composition.relation, b) for a in first for b in second)
