"""Settings: what scenes stand on or before where it is no flat colour, painted anew from every random generator.

    picture, ground = SETTINGS["grass"].paint(np.random.default_rng(0))

Noise, ramps, ripples and bricks (`textures.py`): a caption has endlessly many pictures, and no two lawns are alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from polydraft.modalities.world.painting.textures import (
    SIDE,
    Field,
    X,
    Y,
    blurred,
    fractal,
    mix,
    noise,
    ramp,
    resized,
    step,
)

Painted = tuple[Field, Field]  # a picture [128, 128, 3] in 0..1, and how dark shadows fall where, [128, 128]
TURN = np.float32(2 * np.pi)
EVERYWHERE = np.ones((SIDE, SIDE), np.float32)


@dataclass(frozen=True)
class Setting:
    """wordings: how captions say it, after what stands there. tint: what its light does to the colours of things.

    upright: whether it is a wall behind things, on which shadows fall aside, and not a ground below them.
    """

    paint: Callable[[np.random.Generator], Painted]
    wordings: tuple[str, ...]
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)
    upright: bool = False


def grass(rng: np.random.Generator) -> Painted:
    lean = rng.uniform(-0.6, 0.6)
    blades = resized(rng.random((44, 150), np.float32), SIDE, SIDE * 2)
    columns = (np.arange(SIDE)[:, None] * lean + np.arange(SIDE)).astype(np.int64) % (2 * SIDE)
    leaning = np.take_along_axis(blades, columns, 1)
    light = 0.66 * fractal(rng, 3, 4) + 0.38 * leaning - 0.06 + 0.1 * (noise(rng, 64) - 0.5)
    return ramp(light, (24, 70, 26), (62, 128, 44), (112, 172, 64), (178, 214, 104)), EVERYWHERE


def sand(rng: np.random.Generator) -> Painted:
    turn, ripples = rng.uniform(-0.35, 0.35), rng.uniform(6, 10)
    along = Y + turn * X + rng.random(dtype=np.float32)
    waves = np.sin((along * ripples + fractal(rng, 2, 3) * 2.6) * TURN)
    grain = noise(rng, 110) - 0.5
    light = 0.47 + 0.13 * waves + 0.45 * (fractal(rng, 3, 3) - 0.5) + 0.2 * grain
    return ramp(light, (168, 124, 74), (222, 186, 128), (248, 228, 184)), EVERYWHERE


def snow(rng: np.random.Generator) -> Painted:
    drifts = fractal(rng, 2, 3, 0.45, (1.3, 0.8))
    slope = np.gradient(drifts, axis=0).astype(np.float32) * 14
    light = 0.56 + 0.55 * (drifts - 0.5) + slope + 0.2 * (noise(rng, 100) - 0.5)
    picture = ramp(light, (158, 182, 216), (214, 228, 244), (244, 249, 255), (255, 255, 255))
    picture[rng.integers(SIDE, size=40), rng.integers(SIDE, size=40)] = 1  # glitter
    return picture, EVERYWHERE


def wood(rng: np.random.Generator) -> Painted:
    planks = int(rng.integers(3, 6))
    at = Y * planks + rng.random(dtype=np.float32)
    plank, within = np.floor(at).astype(np.int64), at % 1
    tone, start = rng.uniform(-0.16, 0.16, planks + 2).astype(np.float32), rng.uniform(0, 9, planks + 2)
    rings = fractal(rng, 2, 3, 0.5, (3, 0.5)) * 5 + Y * 11 + X * rng.uniform(0, 1.5) + start[plank].astype(np.float32)
    grain = np.abs(np.sin(rings * TURN / 2))
    light = 0.3 + 0.32 * grain + tone[plank] + 0.22 * (noise(rng, 80, 7) - 0.5)
    picture = ramp(light, (84, 48, 24), (148, 94, 50), (204, 150, 94))
    gap = np.clip(np.minimum(within, 1 - within) * SIDE / planks / 1.6, 0, 1)
    return picture * (0.42 + 0.58 * gap)[..., None], EVERYWHERE


def sea(rng: np.random.Generator) -> Painted:
    """From the beach: sand, surf, water, sky."""
    horizon, shore = rng.uniform(0.22, 0.34), rng.uniform(0.62, 0.76)
    clouds = np.clip((fractal(rng, 3, 4, 0.5, (2.2, 0.8)) - 0.52) * 4, 0, 0.85)
    sky = mix(ramp(Y / horizon, (92, 168, 236), (206, 234, 250)), np.ones((SIDE, SIDE, 3), np.float32), clouds)
    depth = np.clip((Y - horizon) / (shore - horizon), 0, 1)
    waves = np.sin((np.sqrt(depth) * rng.uniform(9, 12) + fractal(rng, 3, 3, 0.6, (1, 0.45)) * 3.2) * TURN)
    glint = 0.16 * waves * (0.35 + depth) + 0.34 * (noise(rng, 60, 16) - 0.5)
    water = ramp(0.12 + 0.62 * depth + glint, (20, 84, 150), (36, 132, 190), (92, 190, 208), (180, 232, 230))
    line = shore + 0.05 * (fractal(rng, 2, 3)[:1] - 0.5)  # [1, 128]: one height a column
    wet = np.clip((Y - line) / 0.1, 0, 1)
    grain = 0.3 * (fractal(rng, 6, 4, 0.8) - 0.5) + 0.14 * (noise(rng, 100) - 0.5)
    beach = ramp(0.25 + 0.45 * wet + grain, (170, 134, 92), (224, 192, 138), (248, 230, 190))
    foam = np.clip(1 - np.abs(Y - line) * 52 + 1.3 * (noise(rng, 30, 22) - 0.5), 0, 1) * 0.9
    picture = mix(mix(sky, water, step(Y, horizon, 0.012)), beach, step(Y, line, 0.015))
    picture = mix(picture, np.ones((SIDE, SIDE, 3), np.float32), foam)
    return picture, 0.45 * step(Y, horizon, 0.02) + 0.55 * step(Y, line, 0.04)


def sky(rng: np.random.Generator) -> Painted:
    heap = fractal(rng, 3, 5, 0.52, (1.5, 0.8))
    cover = np.clip((heap - rng.uniform(0.42, 0.5)) * 5, 0, 1)
    shade = np.clip(0.75 + np.gradient(blurred(heap, 3), axis=0).astype(np.float32) * 22, 0, 1)
    clouds = ramp(shade, (176, 196, 222), (255, 255, 255))
    return mix(ramp(Y, (64, 136, 218), (158, 206, 246)), clouds, cover), 0 * EVERYWHERE


def night(rng: np.random.Generator) -> Painted:
    across = (Y - X * rng.uniform(-0.8, 0.8) - rng.uniform(0.1, 0.6)) * 3
    river = np.exp(-np.square(across)) * np.clip(fractal(rng, 3, 5, 0.6) * 2 - 0.6, 0, 1)
    picture = ramp(Y * 0.7 + 0.5 * river, (8, 10, 38), (26, 30, 84), (66, 58, 124), (132, 110, 170))
    stars = np.zeros((SIDE, SIDE), np.float32)
    rows, columns = rng.integers(SIDE, size=(2, 80))
    stars[rows, columns] = rng.uniform(0.35, 1, 80)
    rows, columns = rng.integers(1, SIDE - 1, size=(2, 9))  # bright ones have arms
    stars[rows, columns] = 1
    for down, right in ((0, 1), (1, 0), (0, -1), (-1, 0)):
        stars[rows + down, columns + right] = np.maximum(stars[rows + down, columns + right], 0.5)
    return mix(picture, np.ones((SIDE, SIDE, 3), np.float32), stars), 0 * EVERYWHERE


def sunset(rng: np.random.Generator) -> Painted:
    horizon = rng.uniform(0.76, 0.86)
    sky = ramp(Y / horizon, (70, 52, 120), (158, 74, 136), (236, 112, 100), (255, 170, 84), (255, 222, 132))
    bars = np.clip((fractal(rng, 3, 5, 0.5, (3.5, 0.6)) - 0.5) * 5, 0, 0.8)
    sky = mix(sky, ramp(Y / horizon, (112, 70, 140), (232, 112, 122), (255, 190, 140), (255, 244, 196)), bars)
    ridges = [horizon + 0.07 * k + (0.24 - 0.04 * k) * (fractal(rng, 2 + k, 3, 0.4)[:1] - 0.5) for k in range(2)]
    picture = mix(sky, ramp(Y, (120, 60, 110), (120, 60, 110)), step(Y, ridges[0], 0.012))
    return mix(picture, ramp(Y, (64, 36, 78), (52, 28, 66)), step(Y, ridges[1], 0.012)), 0 * EVERYWHERE


def brick(rng: np.random.Generator) -> Painted:
    courses = int(rng.integers(7, 10))
    at = Y * courses + rng.random(dtype=np.float32)
    row, within = np.floor(at).astype(np.int64), at % 1
    along = X * (courses * 0.48) + (row % 2).astype(np.float32) * 0.5 + rng.random(dtype=np.float32)
    column, beside = np.floor(along).astype(np.int64), along % 1
    high, wide = SIDE / courses, SIDE / (courses * 0.48)
    edge = np.minimum(np.minimum(within, 1 - within) * high, np.minimum(beside, 1 - beside) * wide)
    tone = rng.random((courses + 2, 8), np.float32)[row, column % 8]
    bevel = 0.16 * step(within, 0.12, 0.2) * -1 + 0.12
    rough = fractal(rng, 12, 4, 0.75) - 0.5
    bricks = ramp(0.22 + 0.5 * tone + 0.36 * rough + bevel, (104, 40, 30), (168, 74, 52), (210, 124, 92))
    mortar = ramp(0.5 + 0.5 * rough, (128, 116, 106), (180, 168, 156))
    return mix(mortar, bricks, step(edge, 1.2, 1.2)), EVERYWHERE


def stone(rng: np.random.Generator) -> Painted:
    """Flagstones: who is nearest to which of scattered points."""
    cells, half = int(rng.integers(3, 6)), SIDE // 2
    corners = np.mgrid[-1 : cells + 1, -1 : cells + 1].reshape(2, -1).T
    points = (corners + rng.uniform(0.12, 0.88, corners.shape)) / cells
    places = np.stack([Y[::2, ::2], X[::2, ::2]], -1).reshape(-1, 2)
    places = places + 0.02 * (np.stack([noise(rng, 9)[::2, ::2], noise(rng, 9)[::2, ::2]], -1).reshape(-1, 2) - 0.5)
    squares = np.square(places).sum(1)[:, None] - 2 * places @ points.T + np.square(points).sum(1)
    two = np.argpartition(squares, 1, 1)[:, :2]
    near = np.sqrt(np.maximum(np.take_along_axis(squares, two, 1), 0))
    gap = resized((near[:, 1] - near[:, 0]).astype(np.float32).reshape(half, half), SIDE, SIDE) * cells
    tone = rng.uniform(-0.2, 0.2, len(points))[two[:, 0]].reshape(half, half).astype(np.float32)
    light = 0.5 + resized(tone, SIDE, SIDE, Image.Resampling.NEAREST) + 0.55 * (fractal(rng, 5, 5, 0.75) - 0.5)
    stones = ramp(light, (96, 96, 100), (150, 150, 150), (204, 202, 194))
    return mix(ramp(fractal(rng, 20, 3), (66, 68, 64), (104, 106, 94)), stones, step(gap, 0.14, 0.16)), EVERYWHERE


LEAF = np.array(  # outline of a leaf along its stem, in units of its length
    [(-0.5, 0), (-0.3, 0.17), (-0.05, 0.26), (0.2, 0.2), (0.5, 0), (0.2, -0.2), (-0.05, -0.26), (-0.3, -0.17)], float
)
LEAVES = ((206, 92, 30), (226, 142, 40), (176, 54, 34), (236, 184, 70), (150, 92, 40), (196, 120, 44), (120, 62, 34))


def leaves(rng: np.random.Generator) -> Painted:
    """Fallen ones over one another, drawn twice as large."""
    number, large = 120, 2 * SIDE
    canvas = Image.fromarray((ramp(fractal(rng, 8, 3), (62, 38, 22), (112, 68, 34)) * 255).astype(np.uint8))
    canvas = canvas.resize((large, large))
    brush = ImageDraw.Draw(canvas)
    angle, length = rng.uniform(0, 2 * np.pi, number), rng.uniform(44, 70, number)
    middle = rng.uniform(-10, large + 10, (number, 1, 2))
    turns = np.stack([np.cos(angle), np.sin(angle), -np.sin(angle), np.cos(angle)], -1).reshape(number, 2, 2)
    outlines = middle + length[:, None, None] * (LEAF @ turns)
    colours = np.asarray(LEAVES)[rng.integers(len(LEAVES), size=number)] * rng.uniform(0.78, 1.0, (number, 1))
    for outline, colour in zip(outlines, np.minimum(colours, 255).astype(int), strict=True):
        flat = [tuple(point) for point in outline]
        brush.polygon([(x + 3, y + 4) for x, y in flat], fill=(84, 48, 24))
        brush.polygon(flat, fill=tuple(colour))
        brush.line([flat[0], flat[4]], fill=tuple((colour * 0.72).astype(int)), width=2)
    picture = np.asarray(canvas.reduce(2), np.float32) / 255
    return picture * (0.85 + 0.3 * noise(rng, 4))[..., None], EVERYWHERE


def water(rng: np.random.Generator) -> Painted:
    """Below the surface: rays from above, their net of light, and bubbles."""
    fan = resized(rng.random((1, 22), np.float32), 1, 2 * SIDE)[0]
    rays = fan[np.clip((X - 0.5) / (0.7 + Y) * 110 + SIDE, 0, 2 * SIDE - 1).astype(np.int64)] * (1 - Y)
    net = 1 - np.abs(2 * fractal(rng, 5, 2, 0.5, (1.5, 0.9)) - 1) * 5
    light = 0.92 - 0.86 * Y + 0.34 * (rays - 0.3) + 0.13 * np.clip(net, -0.4, 1) + 0.1 * (noise(rng, 40) - 0.5)
    picture = ramp(light, (8, 52, 92), (14, 96, 138), (44, 156, 184), (136, 222, 224))
    for _ in range(int(rng.integers(6, 13))):
        row, column, radius = rng.uniform(0, 1), rng.uniform(0, 1), rng.uniform(0.01, 0.026)
        far = np.hypot(Y - row, X - column) / radius
        rim = np.clip(1 - np.abs(far - 1) * 2.2, 0, 1) * 0.6 + 0.12 * (far < 1)
        picture = mix(picture, np.full((1, 1, 3), (0.86, 0.98, 1), np.float32), rim.astype(np.float32))
    return picture, 0 * EVERYWHERE


SETTINGS: dict[str, Setting] = {
    "grass": Setting(grass, ("on grass", "on the grass", "on a lawn")),
    "sand": Setting(sand, ("on sand", "on the sand", "in the desert"), (1.02, 1.0, 0.96)),
    "snow": Setting(snow, ("in the snow", "on snow", "on snowy ground"), (0.98, 1.0, 1.02)),
    "wood": Setting(wood, ("on a wooden table", "on wood", "on wooden boards")),
    "sea": Setting(sea, ("by the sea", "at the seaside", "on the beach")),
    "sky": Setting(sky, ("under a cloudy sky", "in the sky", "among clouds")),
    "night": Setting(night, ("under the stars", "under a starry sky", "at night"), (0.86, 0.88, 0.98)),
    "sunset": Setting(sunset, ("at sunset", "in the evening", "at dusk"), (1.0, 0.93, 0.88)),
    "brick": Setting(brick, ("before a brick wall", "in front of a brick wall", "against bricks"), upright=True),
    "stone": Setting(stone, ("on a stone floor", "on stone", "on flagstones")),
    "leaves": Setting(leaves, ("on autumn leaves", "among fallen leaves", "in autumn"), (1.02, 0.99, 0.95)),
    "water": Setting(water, ("under water", "in the water", "in the deep sea"), (0.9, 0.98, 1.0)),
}
