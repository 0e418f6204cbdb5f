"""Detection of objects in settings: kind, position, rotation, and whether each is whole.

The pixels behind an object are unknown, so an object is detected where its pixels are likelier under its own colours
than under its background's (a likelihood ratio over its silhouette). The ratio is computed for every kind, size,
rotation and position by matrix products; the best candidates are then fitted a shift and a light, and of those that
overlap the likelier stay.

A ratio alone fails where a background shows colours that it rarely has, so that anything is likelier, and on the
remains of a large object, of which some part looks like a small one. Colours that vary have to vary in the image too
(`pattern_correlation`), and no half of a large object may explain more than a small one does (`remnant_ratio`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polydraft.apps.lab.judging.backgrounds import COARSE, BackgroundModel, distances_to_background, downsample
from polydraft.apps.lab.judging.matcher import MatchCandidate, best_disjoint_set
from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.painting.staging import ANGLES, rotated_glyph
from polydraft.modalities.world.painting.textures import Field
from polydraft.modalities.world.scene import CANVAS, PlacedObject, Scene

GRID_STEP = 4  # pixels between positions that are searched: a generated object may lie beside its cells
SHIFTS = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1))  # of coarse pixels
SEARCH_DEVIATION = 0.11  # deviation of an object's pixels from its colours before its light is fitted, 0..1
FIT_DEVIATION = 0.08  # and after
OUTLIER_SHARE = 0.03  # share of an object's pixels that may be anything
MIN_SEARCH_RATIO = -1.5  # ratio per pixel from which a position is fitted: rotation and light gain as much
PEAKS, RIVALS = 10, 4  # positions per size, and kinds at each, that are fitted
MAX_CANDIDATES = 16

MIN_RATIO = 0.9  # mean log-likelihood ratio per pixel
MIN_FAINT_RATIO = 0.3  # of objects with a clear pattern: a bicycle is mostly background, a koala grey as stone
PATTERNED, FAINTLY_PATTERNED = 0.1, 0.06  # deviation of an object's colours from which they have a pattern
# Correlation of that with the image. Measured on 106 correct objects: 0.91 at least, degraded or not; on backgrounds
# with rare colours 0.09 at most, on remains of larger objects about anything. Faint objects (bicycles on stone,
# degraded) have 0.62 at least and ratios of 0.44, the best positions beside them 0.5 and less than -1.9.
MIN_PATTERN, CLEAR_PATTERN = 0.4, 0.6
MAX_REMNANT_RATIO = 0.8  # measured: correct small objects 0.57 at most, remains of large ones 1 at least
MIN_PART_RATIO = -0.5  # of the worst quarter of an object: where it is missing, the background is likelier
MAX_ERROR = 0.14  # root mean square of an object's pixels
MIN_COVER = 0.1  # smaller cover is no part of an object
RARE_COLOUR = -2.0  # log density of colours that a background hardly has
MAX_RIM = 0.3  # share of such pixels around an object
MAX_PATCH_DISTANCE = 0.14  # distance of an uncovered patch to the nearest known one of the background


@dataclass(frozen=True)
class FittedObject(MatchCandidate):
    """An object fitted to a downsampled image."""

    error: float  # deviation of its pixels
    worst: float  # log-likelihood ratio per pixel of its worst quarter
    ratio: float  # log-likelihood ratio per pixel
    cover: Field  # [64, 64] silhouette
    place: tuple[int, int]  # row and column of its box
    lit: Field  # [s, s, 3] colours in its box, with the fitted light
    weight: Field  # [s, s] weight of every pixel of the box

    @property
    def is_whole(self) -> bool:
        return self.error <= MAX_ERROR and self.worst >= MIN_PART_RATIO


@functools.cache
def template(kind: str, size: str, turn: float) -> tuple[Field, Field]:
    """Return colours [s, s, 3] and silhouette [s, s] of a rotated glyph's box in averaged pixels."""
    side = GLYPH_SIZES[size] // COARSE
    box = rotated_glyph(kind, size, turn).reshape(side, COARSE, side, COARSE, 4).mean((1, 3))
    alpha = box[..., 3]
    return box[..., :3] / np.maximum(alpha, 1e-3)[
        ..., None
    ], alpha**3  # edges are half background, and have lower weights


@functools.cache
def templates(size: str) -> tuple[Field, Field, Field]:
    """Return the templates of all kinds at all `TURNS`.

    Returns:
        tuple: weighted colours [K * T, s * s * 3], weights [K * T, s * s], energies by channel [K * T, 3].
    """
    both = [template(kind, size, turn) for kind in KINDS for turn in ANGLES]
    colours, weights = np.stack([colour for colour, _ in both]), np.stack([weight for _, weight in both])
    weighted = colours * weights[..., None]
    energy = (weighted * colours).sum((1, 2))
    return weighted.reshape(len(both), -1), weights.reshape(len(both), -1), energy


def find_objects(picture: NDArray[np.uint8], setting: str) -> list[FittedObject]:
    """Detect the objects in an image [128, 128, 3] uint8 of a setting."""
    pixels = downsample(picture)
    ground = BackgroundModel.for_background(setting).log_density(pixels)
    fits = [fit for size in GLYPH_SIZES for fit in best_candidates(pixels, ground, setting, size)]
    fits = sorted((fit for fit in fits if is_object(pixels, fit)), key=lambda fit: -fit.gain)
    _, chosen = best_disjoint_set(list(fits[:MAX_CANDIDATES]))
    return [fit for fit in chosen if isinstance(fit, FittedObject)]


def best_candidates(pixels: Field, ground: Field, setting: str, size: str) -> list[FittedObject]:
    """Return fitted objects at the best positions of a size, the best of several kinds at each."""
    side, step = GLYPH_SIZES[size] // COARSE, GRID_STEP // COARSE
    tint = np.asarray(SETTINGS[setting].tint, np.float32)
    weighted, weights, energy = templates(size)
    boxes = windows(pixels / tint, side)[::step, ::step]  # as under white light
    grid = boxes.shape[:2]
    boxes = boxes.transpose(0, 1, 3, 4, 2).reshape(grid[0] * grid[1], -1)
    variance = SEARCH_DEVIATION**2
    known = windows((np.square(pixels / tint).sum(-1) / (2 * variance) + ground)[..., None], side)[::step, ::step]
    known = known.reshape(grid[0] * grid[1], -1)
    constant = -1.5 * np.log(2 * np.pi * variance) * weights.sum(1) - energy.sum(1) / (2 * variance)
    ratio = (boxes @ weighted.T) / np.float32(variance) - known @ weights.T + constant.astype(np.float32)
    turns = ratio.reshape(*grid, len(KINDS), len(ANGLES))
    kinds = turns.max(-1)
    best = kinds.max(-1)
    around = np.pad(best, 1, constant_values=-np.inf)
    peak = best == np.lib.stride_tricks.sliding_window_view(around, (3, 3)).max((-2, -1))
    places = np.argwhere(peak & (best > MIN_SEARCH_RATIO * weights.sum(1).mean()))
    places = places[np.argsort(-best[tuple(places.T)])][:PEAKS]
    found = []
    for row, column in places:
        rivals = np.argsort(-kinds[row, column])[:RIVALS]
        angles = [ANGLES[int(turns[row, column, kind].argmax())] for kind in rivals]
        fits = [
            fit_object(pixels, ground, tint, list(KINDS)[kind], size, int(row), int(column), angle)
            for kind, angle in zip(rivals, angles, strict=True)
        ]
        found.append(max(fits, key=lambda fit: fit.gain))
    return found


def windows(planes: Field, side: int) -> Field:
    """Return all boxes [P, P, C, side, side] of an image [64, 64, C]."""
    return np.lib.stride_tricks.sliding_window_view(planes, (side, side), (0, 1))


def fit_object(
    pixels: Field, ground: Field, tint: Field, kind: str, size: str, row: int, column: int, turn: float
) -> FittedObject:
    """Fit the shift and light of an object near a position."""
    step, side = GRID_STEP // COARSE, GLYPH_SIZES[size] // COARSE
    item = PlacedObject(kind, size, column * GRID_STEP, row * GRID_STEP)
    last = CANVAS // COARSE - side
    colours, weight = template(kind, size, turn)

    def fit_at(down: int, right: int) -> FittedObject:
        here = slice(down, down + side), slice(right, right + side)
        lit = fit_light(colours * tint, pixels[here], weight)
        error = np.square(pixels[here] - lit).sum(-1)
        near = np.exp(-error / (2 * FIT_DEVIATION**2)) * ((1 - OUTLIER_SHARE) / (2 * np.pi * FIT_DEVIATION**2) ** 1.5)
        ratio = weight * (np.log(near + OUTLIER_SHARE) - ground[here])
        gain, total = float(ratio.sum()), float(weight.sum())
        cover = np.zeros(pixels.shape[:2], np.float32)
        cover[here] = np.cbrt(weight)
        deviation = float(np.sqrt((weight * error).sum() / (3 * total)))
        return FittedObject(
            item, gain, deviation, worst_quarter_ratio(weight, ratio), gain / total, cover, (down, right), lit, weight
        )  # fmt: skip

    shifted = [(row * step + down, column * step + right) for down, right in SHIFTS]
    inside = [(down, right) for down, right in shifted if min(down, right) >= 0 and max(down, right) <= last]
    return max((fit_at(*place) for place in inside), key=lambda fit: fit.gain)


def fit_light(colours: Field, pixels: Field, weight: Field) -> Field:
    """Fit brightness and its gradients, with shrinkage, and return colours [s, s, 3] in that light."""
    side = len(colours)
    at = np.linspace(-1, 1, side, dtype=np.float32)
    ramps = np.stack(np.broadcast_arrays(np.float32(1), at, at[:, None]))
    products = (colours * colours).sum(-1) * weight
    system = np.einsum("iyx,jyx,yx->ij", ramps, ramps, products)
    misses = np.einsum("iyx,yx->i", ramps, ((pixels - colours) * colours).sum(-1) * weight)
    keep = 0.15 * products.sum() * np.eye(3, dtype=np.float32)
    change = np.clip(np.linalg.solve(system + keep, misses), -0.15, 0.15).astype(np.float32)
    lit: Field = np.minimum(colours * (1 + np.tensordot(change, ramps, 1))[..., None], 1)
    return lit


def worst_quarter_ratio(weight: Field, ratio: Field) -> float:
    """Return the ratio per pixel in the worst quarter of an object: upper, lower, left or right, of equal weight."""
    found = []
    for axis in (0, 1):
        weights, ratios = weight.sum(axis), ratio.sum(axis)
        edges = np.searchsorted(weights.cumsum(), weights.sum() * np.array([0.25, 0.75]))
        for part in (slice(None, edges[0] + 1), slice(edges[1], None)):
            found.append(float(ratios[part].sum() / (weights[part].sum() + 1e-6)))
    return min(found)


def pattern_correlation(pixels: Field, fit: FittedObject) -> tuple[float, float]:
    """Return the correlation of an object's pixels with its colours, and the deviation of its colours."""
    share = (fit.weight / fit.weight.sum())[..., None]
    here = pixels[tuple(slice(at, at + len(fit.weight)) for at in fit.place)]
    expected, observed = (part - (share * part).sum((0, 1)) for part in (fit.lit, here))
    within, around, both = (
        (share * a * b).sum() for a, b in ((expected, expected), (observed, observed), (expected, observed))
    )
    return float(both / np.sqrt(within * around + 1e-12)), float(np.sqrt(within / 3))


def is_object(pixels: Field, fit: FittedObject) -> bool:
    """Return whether a fit is an object, by its ratio and its pattern."""
    if fit.ratio < MIN_FAINT_RATIO:
        return False
    correlation, deviation = pattern_correlation(pixels, fit)
    if fit.ratio < MIN_RATIO:
        return deviation >= FAINTLY_PATTERNED and correlation >= CLEAR_PATTERN
    return deviation < PATTERNED or correlation >= MIN_PATTERN


def remnant_ratio(pixels: Field, ground: Field, setting: str, fit: FittedObject) -> float:
    """Return the gain of the best half of a large object of the same kind over the gain of a small one."""
    side, small, step = GLYPH_SIZES["large"] // COARSE, GLYPH_SIZES["small"] // COARSE, GRID_STEP // COARSE
    top, left = (
        np.unique(np.clip(np.arange(at + small - side, at + 1, step), 0, CANVAS // COARSE - side)) for at in fit.place
    )
    boxes = windows(pixels, side)[np.ix_(top, left)].transpose(0, 1, 3, 4, 2)
    behind = windows(ground[..., None], side)[np.ix_(top, left)][:, :, 0]
    tint, best = np.asarray(SETTINGS[setting].tint, np.float32), 0.0
    for turn in ANGLES:
        colours, weight = template(fit.item.kind, "large", turn)
        error = np.square(boxes - colours * tint).sum(-1)
        near = np.exp(-error / (2 * SEARCH_DEVIATION**2)) * (
            (1 - OUTLIER_SHARE) / (2 * np.pi * SEARCH_DEVIATION**2) ** 1.5
        )
        ratio = weight * (np.log(near + OUTLIER_SHARE) - behind)
        for axis in (0, 1):
            weights, ratios = weight.sum(1 - axis), ratio.sum(3 - axis)
            cut = int(np.searchsorted(weights.cumsum(), weights.sum() / 2))
            for part in (slice(None, cut), slice(cut, None)):
                gains, total = ratios[..., part].sum(-1), weights[part].sum()
                best = max(best, float(gains[gains >= MIN_RATIO * total].max(initial=0)))
    return best / fit.gain


def object_coverage(things: list[FittedObject]) -> Field:
    """Return how much objects cover every pixel, [64, 64]."""
    cover = np.zeros((CANVAS // COARSE,) * 2, np.float32)
    for fit in things:
        cover = np.maximum(cover, fit.cover)
    return cover


def dilate(cover: Field, pixels: int) -> Field:
    """Return the maximum of `cover` within so many pixels."""
    around = np.pad(cover, pixels)
    found: Field = np.lib.stride_tricks.sliding_window_view(around, (2 * pixels + 1,) * 2).max((-2, -1))
    return found


def foreign_rim_share(ground: Field, things: list[FittedObject], fit: FittedObject) -> float:
    """Return the share of pixels around an object that can hardly be background, as around half a large one."""
    around = (dilate(fit.cover, 3) > MIN_COVER) & ~(dilate(object_coverage(things), 1) > MIN_COVER)
    return float((ground[around] < RARE_COLOUR).mean()) if around.any() else 0.0


def max_patch_distance(picture: NDArray[np.uint8], setting: str, things: list[FittedObject]) -> float:
    """Return the largest distance to the background of a patch that no object covers."""
    wide = dilate(object_coverage(things), 2)
    free = np.lib.stride_tricks.sliding_window_view(wide, (4, 4))[::2, ::2].max((-2, -1)) < MIN_COVER
    return float(distances_to_background(picture, setting)[free].max(initial=0))


def to_scene(setting: str, things: list[FittedObject]) -> Scene:
    return Scene(setting, tuple(fit.item for fit in things))


def is_clean(picture: NDArray[np.uint8], setting: str, things: list[FittedObject]) -> bool:
    """Return whether there is nothing but the setting and whole objects."""
    pixels = downsample(picture)
    ground = BackgroundModel.for_background(setting).log_density(pixels)
    whole = all(
        fit.is_whole and foreign_rim_share(ground, things, fit) <= MAX_RIM
        and (fit.item.size == "large" or remnant_ratio(pixels, ground, setting, fit) <= MAX_REMNANT_RATIO)
        for fit in things
    )  # fmt: skip
    return whole and max_patch_distance(picture, setting, things) <= MAX_PATCH_DISTANCE
