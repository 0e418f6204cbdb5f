"""Finds things that stand in settings: which, where, how turned, and whether each is whole.

Like `matcher.py`, and stricter arithmetic: what is behind a thing is not known, so a thing is seen where its pixels are
likelier to be its own colours than its ground's (a likelihood ratio over its silhouette). The ratio is computed for
every kind, size, turn and place by products of matrices; the best are then fitted a shift and a light, and of those
that overlap the likelier stay.

A ratio alone is fooled where a ground shows colours that it rarely has, so that anything is likelier, and by what
remains of a large thing, of which some part looks like a small one. Colours that vary have to vary in the picture too
(`pattern`), and no half of a large thing may explain more than a small one does (`remnant`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.judging.grounds import COARSE, Ground, coarse, strangeness
from polydraft.modalities.world.judging.matcher import Candidate, best_set
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.painting.staging import TURNS, turned
from polydraft.modalities.world.painting.textures import Field
from polydraft.modalities.world.scene import CANVAS, Placed, Scene

EVERY = 4  # pixels between places that are looked at: a drawn thing may stand beside its cells
SHIFTS = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1))  # of coarse pixels
LOOKED = 0.11  # deviation of a thing's pixels from its colours before its light is fitted, 0..1
FITTED = 0.08  # and after
STRANGERS = 0.03  # share of a thing's pixels that may be anything
UNFITTED = -1.5  # ratio a pixel from which on a place is fitted at all: a turn and a light gain as much
PEAKS, RIVALS = 10, 4  # places a size, and kinds at each, that are fitted
MAX_CANDIDATES = 16

MIN_RATIO = 0.9  # mean log-likelihood ratio a pixel
MIN_FAINT_RATIO = 0.3  # of what has its pattern clearly: a bicycle is mostly ground, a koala grey as stone
VARIED, FAINTLY_VARIED = 0.1, 0.06  # deviation of a thing's own colours from which on they have a pattern
# Correlation of that with the picture. Measured on 106 right things: 0.91 at least, worn or not; on grounds with rare
# colours 0.09 at most, on remains of larger things about anything. Faint things (bicycles on stone, worn) have 0.62 at
# least and ratios of 0.44, the best places beside them 0.5 and less than -1.9.
MIN_PATTERN, CLEAR_PATTERN = 0.4, 0.6
MAX_REMNANT = 0.8  # measured: right small things 0.57 at most, what remains of large ones 1 at least
MIN_PART_RATIO = -0.5  # of the worst quarter of a thing: where it is missing its ground shows, and is likelier
MAX_ERROR = 0.14  # root mean square of a thing's pixels
EDGE = 0.1  # of cover: less is no part of a thing
RARE = -2.0  # log density of colours that a ground hardly has
MAX_RIM = 0.3  # share of such around a thing
MAX_STRANGE = 0.14  # distance of a patch beside all things to the nearest known one of its ground


@dataclass(frozen=True)
class Seen(Candidate):
    """A thing that fits. error: deviation of its pixels. ratio, worst: a pixel's log-likelihood ratio, and that of one
    in its worst quarter.

    cover: its silhouette in the coarse picture, `[64, 64]`. place: row and column of its box there, in which it has the
    colours `lit` `[s, s, 3]`, of which every pixel counts `weight` `[s, s]`.
    """

    error: float
    worst: float
    ratio: float
    cover: Field
    place: tuple[int, int]
    lit: Field
    weight: Field

    @property
    def whole(self) -> bool:
        return self.error <= MAX_ERROR and self.worst >= MIN_PART_RATIO


@functools.cache
def template(kind: str, size: str, turn: float) -> tuple[Field, Field]:
    """Colours `[s, s, 3]` and silhouette `[s, s]` of a turned glyph's box in coarse pixels."""
    side = SIZES[size] // COARSE
    box = turned(kind, size, turn).reshape(side, COARSE, side, COARSE, 4).mean((1, 3))
    alpha = box[..., 3]
    return box[..., :3] / np.maximum(alpha, 1e-3)[..., None], alpha**3  # edges are half ground, and count less


@functools.cache
def templates(size: str) -> tuple[Field, Field, Field]:
    """Of all kinds at all `TURNS`: weighted colours `[K * T, s * s * 3]`, weights `[K * T, s * s]`, energies by channel
    `[K * T, 3]`."""
    both = [template(kind, size, turn) for kind in KINDS for turn in TURNS]
    colours, weights = np.stack([colour for colour, _ in both]), np.stack([weight for _, weight in both])
    weighted = colours * weights[..., None]
    energy = (weighted * colours).sum((1, 2))
    return weighted.reshape(len(both), -1), weights.reshape(len(both), -1), energy


def find(picture: NDArray[np.uint8], setting: str) -> list[Seen]:
    """The things in a `[128, 128, 3]` uint8 picture of a setting."""
    pixels = coarse(picture)
    ground = Ground.of(setting).likelihood(pixels)
    found = [seen for size in SIZES for seen in look(pixels, ground, setting, size)]
    found = sorted((seen for seen in found if likely(pixels, seen)), key=lambda seen: -seen.gain)
    _, chosen = best_set(list(found[:MAX_CANDIDATES]))
    return [seen for seen in chosen if isinstance(seen, Seen)]


def look(pixels: Field, ground: Field, setting: str, size: str) -> list[Seen]:
    """What may stand where: the best places of a size and the best kinds at each, fitted."""
    side, step = SIZES[size] // COARSE, EVERY // COARSE
    tint = np.asarray(SETTINGS[setting].tint, np.float32)
    weighted, weights, energy = templates(size)
    boxes = windows(pixels / tint, side)[::step, ::step]  # as under white light
    grid = boxes.shape[:2]
    boxes = boxes.transpose(0, 1, 3, 4, 2).reshape(grid[0] * grid[1], -1)
    known = windows((np.square(pixels / tint).sum(-1) / (2 * LOOKED**2) + ground)[..., None], side)[::step, ::step]
    known = known.reshape(grid[0] * grid[1], -1)
    constant = -1.5 * np.log(2 * np.pi * LOOKED**2) * weights.sum(1) - energy.sum(1) / (2 * LOOKED**2)
    ratio = (boxes @ weighted.T) / np.float32(LOOKED**2) - known @ weights.T + constant.astype(np.float32)
    turns = ratio.reshape(*grid, len(KINDS), len(TURNS))
    kinds = turns.max(-1)
    best = kinds.max(-1)
    around = np.pad(best, 1, constant_values=-np.inf)
    peak = best == np.lib.stride_tricks.sliding_window_view(around, (3, 3)).max((-2, -1))
    places = np.argwhere(peak & (best > UNFITTED * weights.sum(1).mean()))
    places = places[np.argsort(-best[tuple(places.T)])][:PEAKS]
    found = []
    for row, column in places:
        rivals = np.argsort(-kinds[row, column])[:RIVALS]
        angles = [TURNS[int(turns[row, column, kind].argmax())] for kind in rivals]
        fits = [
            fitted(pixels, ground, tint, list(KINDS)[kind], size, int(row), int(column), angle)
            for kind, angle in zip(rivals, angles, strict=True)
        ]
        found.append(max(fits, key=lambda seen: seen.gain))
    return found


def windows(planes: Field, side: int) -> Field:
    """All boxes of a picture `[64, 64, C]`: `[P, P, C, side, side]`."""
    return np.lib.stride_tricks.sliding_window_view(planes, (side, side), (0, 1))


def fitted(pixels: Field, ground: Field, tint: Field, kind: str, size: str, row: int, column: int, turn: float) -> Seen:
    """The thing at its best shift near a place, in its best light."""
    step, side = EVERY // COARSE, SIZES[size] // COARSE
    item = Placed(kind, size, column * EVERY, row * EVERY)
    last = CANVAS // COARSE - side
    colours, weight = template(kind, size, turn)

    def seen(down: int, right: int) -> Seen:
        here = slice(down, down + side), slice(right, right + side)
        lit = light(colours * tint, pixels[here], weight)
        error = np.square(pixels[here] - lit).sum(-1)
        near = np.exp(-error / (2 * FITTED**2)) * ((1 - STRANGERS) / (2 * np.pi * FITTED**2) ** 1.5)
        ratio = weight * (np.log(near + STRANGERS) - ground[here])
        gain, total = float(ratio.sum()), float(weight.sum())
        cover = np.zeros(pixels.shape[:2], np.float32)
        cover[here] = np.cbrt(weight)
        deviation = float(np.sqrt((weight * error).sum() / (3 * total)))
        return Seen(
            item, gain, deviation, worst_part(weight, ratio), gain / total, cover, (down, right), lit, weight
        )  # fmt: skip

    shifted = [(row * step + down, column * step + right) for down, right in SHIFTS]
    inside = [(down, right) for down, right in shifted if min(down, right) >= 0 and max(down, right) <= last]
    return max((seen(*place) for place in inside), key=lambda fit: fit.gain)


def light(colours: Field, pixels: Field, weight: Field) -> Field:
    """Colours `[s, s, 3]` under the light that explains `pixels` best: brightness and its slopes, kept near none."""
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


def worst_part(weight: Field, ratio: Field) -> float:
    """The ratio of a pixel in the worst of a thing's quarters: upper, lower, left and right ones of equal weight."""
    found = []
    for axis in (0, 1):
        weights, ratios = weight.sum(axis), ratio.sum(axis)
        edges = np.searchsorted(weights.cumsum(), weights.sum() * np.array([0.25, 0.75]))
        for part in (slice(None, edges[0] + 1), slice(edges[1], None)):
            found.append(float(ratios[part].sum() / (weights[part].sum() + 1e-6)))
    return min(found)


def pattern(pixels: Field, seen: Seen) -> tuple[float, float]:
    """How a thing's pixels vary as its own colours do, as a correlation, and how much its colours vary at all."""
    share = (seen.weight / seen.weight.sum())[..., None]
    here = pixels[tuple(slice(at, at + len(seen.weight)) for at in seen.place)]
    own, found = (part - (share * part).sum((0, 1)) for part in (seen.lit, here))
    within, around, both = ((share * a * b).sum() for a, b in ((own, own), (found, found), (own, found)))
    return float(both / np.sqrt(within * around + 1e-12)), float(np.sqrt(within / 3))


def likely(pixels: Field, seen: Seen) -> bool:
    """Whether it is a thing at all."""
    if seen.ratio < MIN_FAINT_RATIO:
        return False
    alike, varied = pattern(pixels, seen)
    if seen.ratio < MIN_RATIO:
        return varied >= FAINTLY_VARIED and alike >= CLEAR_PATTERN
    return varied < VARIED or alike >= MIN_PATTERN


def remnant(pixels: Field, ground: Field, setting: str, seen: Seen) -> float:
    """How much more half a large thing of a small one's kind explains around it than it does itself."""
    side, small, step = SIZES["large"] // COARSE, SIZES["small"] // COARSE, EVERY // COARSE
    top, left = (
        np.unique(np.clip(np.arange(at + small - side, at + 1, step), 0, CANVAS // COARSE - side)) for at in seen.place
    )
    boxes = windows(pixels, side)[np.ix_(top, left)].transpose(0, 1, 3, 4, 2)
    behind = windows(ground[..., None], side)[np.ix_(top, left)][:, :, 0]
    tint, best = np.asarray(SETTINGS[setting].tint, np.float32), 0.0
    for turn in TURNS:
        colours, weight = template(seen.item.kind, "large", turn)
        error = np.square(boxes - colours * tint).sum(-1)
        near = np.exp(-error / (2 * LOOKED**2)) * ((1 - STRANGERS) / (2 * np.pi * LOOKED**2) ** 1.5)
        ratio = weight * (np.log(near + STRANGERS) - behind)
        for axis in (0, 1):
            weights, ratios = weight.sum(1 - axis), ratio.sum(3 - axis)
            cut = int(np.searchsorted(weights.cumsum(), weights.sum() / 2))
            for part in (slice(None, cut), slice(cut, None)):
                gains, total = ratios[..., part].sum(-1), weights[part].sum()
                best = max(best, float(gains[gains >= MIN_RATIO * total].max(initial=0)))
    return best / seen.gain


def covered(things: list[Seen]) -> Field:
    """How much things cover every pixel, `[64, 64]`."""
    cover = np.zeros((CANVAS // COARSE,) * 2, np.float32)
    for seen in things:
        cover = np.maximum(cover, seen.cover)
    return cover


def wider(cover: Field, pixels: int) -> Field:
    """What covers anything within so many pixels."""
    around = np.pad(cover, pixels)
    found: Field = np.lib.stride_tricks.sliding_window_view(around, (2 * pixels + 1,) * 2).max((-2, -1))
    return found


def rim(ground: Field, things: list[Seen], seen: Seen) -> float:
    """Share of what is around a thing that can hardly be ground: half a large one may pass for a whole small one."""
    around = (wider(seen.cover, 3) > EDGE) & ~(wider(covered(things), 1) > EDGE)
    return float((ground[around] < RARE).mean()) if around.any() else 0.0


def strange(picture: NDArray[np.uint8], setting: str, things: list[Seen]) -> float:
    """How strange the strangest patch is that no thing covers."""
    wide = wider(covered(things), 2)
    free = np.lib.stride_tricks.sliding_window_view(wide, (4, 4))[::2, ::2].max((-2, -1)) < EDGE
    return float(strangeness(picture, setting)[free].max(initial=0))


def scene_of(setting: str, things: list[Seen]) -> Scene:
    return Scene(setting, tuple(seen.item for seen in things))


def is_clean(picture: NDArray[np.uint8], setting: str, things: list[Seen]) -> bool:
    """Whether there is nothing but the setting and whole things."""
    pixels = coarse(picture)
    ground = Ground.of(setting).likelihood(pixels)
    whole = all(
        seen.whole and rim(ground, things, seen) <= MAX_RIM
        and (seen.item.size == "large" or remnant(pixels, ground, setting, seen) <= MAX_REMNANT)
        for seen in things
    )  # fmt: skip
    return whole and strange(picture, setting, things) <= MAX_STRANGE
