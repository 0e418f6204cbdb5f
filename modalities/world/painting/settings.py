"""Settings: procedurally painted backgrounds, a new one for every state of a random generator.

    image, shadow_strength = SETTINGS["grass"].paint(np.random.default_rng(0))

They are made of noise, colour ramps, ripples and bricks (`textures.py`), so a caption has endlessly many images.
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
    blend,
    blur_field,
    colour_ramp,
    fractal_noise,
    linear_step,
    resize_field,
    smooth_noise,
)

PaintedBackground = tuple[Field, Field]  # image [128, 128, 3] in 0..1, and strength of shadows [128, 128]
TWO_PI = np.float32(2 * np.pi)
FULL_SHADOWS = np.ones((SIDE, SIDE), np.float32)


@dataclass(frozen=True)
class Setting:
    """Setting of scenes: a painter and its wordings in captions."""

    paint: Callable[[np.random.Generator], PaintedBackground]
    wordings: tuple[str, ...]  # in captions, after the objects
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)  # RGB factors of the light on objects
    upright: bool = False  # whether it is a wall behind objects, where shadows fall to the side, and not a floor


def paint_grass(rng: np.random.Generator) -> PaintedBackground:
    """Paint leaning blades of grass."""
    lean = rng.uniform(-0.6, 0.6)
    blades = resize_field(rng.random((44, 150), np.float32), SIDE, SIDE * 2)
    columns = (np.arange(SIDE)[:, None] * lean + np.arange(SIDE)).astype(np.int64) % (2 * SIDE)
    leaning = np.take_along_axis(blades, columns, 1)
    light = 0.66 * fractal_noise(rng, 3, 4) + 0.38 * leaning - 0.06 + 0.1 * (smooth_noise(rng, 64) - 0.5)
    return colour_ramp(light, (24, 70, 26), (62, 128, 44), (112, 172, 64), (178, 214, 104)), FULL_SHADOWS


def paint_sand(rng: np.random.Generator) -> PaintedBackground:
    """Paint rippled sand."""
    turn, ripples = rng.uniform(-0.35, 0.35), rng.uniform(6, 10)
    along = Y + turn * X + rng.random(dtype=np.float32)
    waves = np.sin((along * ripples + fractal_noise(rng, 2, 3) * 2.6) * TWO_PI)
    grain = smooth_noise(rng, 110) - 0.5
    light = 0.47 + 0.13 * waves + 0.45 * (fractal_noise(rng, 3, 3) - 0.5) + 0.2 * grain
    return colour_ramp(light, (168, 124, 74), (222, 186, 128), (248, 228, 184)), FULL_SHADOWS


def paint_snow(rng: np.random.Generator) -> PaintedBackground:
    """Paint snow drifts with glitter."""
    drifts = fractal_noise(rng, 2, 3, 0.45, (1.3, 0.8))
    slope = np.gradient(drifts, axis=0).astype(np.float32) * 14
    light = 0.56 + 0.55 * (drifts - 0.5) + slope + 0.2 * (smooth_noise(rng, 100) - 0.5)
    image = colour_ramp(light, (158, 182, 216), (214, 228, 244), (244, 249, 255), (255, 255, 255))
    image[rng.integers(SIDE, size=40), rng.integers(SIDE, size=40)] = 1  # glitter
    return image, FULL_SHADOWS


def paint_wood(rng: np.random.Generator) -> PaintedBackground:
    """Paint wooden planks with grain."""
    planks = int(rng.integers(3, 6))
    scaled = Y * planks + rng.random(dtype=np.float32)
    plank, within = np.floor(scaled).astype(np.int64), scaled % 1
    tone, start = rng.uniform(-0.16, 0.16, planks + 2).astype(np.float32), rng.uniform(0, 9, planks + 2)
    noise = fractal_noise(rng, 2, 3, 0.5, (3, 0.5))
    rings = noise * 5 + Y * 11 + X * rng.uniform(0, 1.5) + start[plank].astype(np.float32)
    grain = np.abs(np.sin(rings * TWO_PI / 2))
    light = 0.3 + 0.32 * grain + tone[plank] + 0.22 * (smooth_noise(rng, 80, 7) - 0.5)
    image = colour_ramp(light, (84, 48, 24), (148, 94, 50), (204, 150, 94))
    gap = np.clip(np.minimum(within, 1 - within) * SIDE / planks / 1.6, 0, 1)
    return image * (0.42 + 0.58 * gap)[..., None], FULL_SHADOWS


def paint_sea(rng: np.random.Generator) -> PaintedBackground:
    """Paint the view from a beach: sand, surf, water and sky."""
    horizon, shore = rng.uniform(0.22, 0.34), rng.uniform(0.62, 0.76)
    clouds = np.clip((fractal_noise(rng, 3, 4, 0.5, (2.2, 0.8)) - 0.52) * 4, 0, 0.85)
    sky = blend(colour_ramp(Y / horizon, (92, 168, 236), (206, 234, 250)), np.ones((SIDE, SIDE, 3), np.float32), clouds)
    depth = np.clip((Y - horizon) / (shore - horizon), 0, 1)
    waves = np.sin((np.sqrt(depth) * rng.uniform(9, 12) + fractal_noise(rng, 3, 3, 0.6, (1, 0.45)) * 3.2) * TWO_PI)
    glint = 0.16 * waves * (0.35 + depth) + 0.34 * (smooth_noise(rng, 60, 16) - 0.5)
    water = colour_ramp(0.12 + 0.62 * depth + glint, (20, 84, 150), (36, 132, 190), (92, 190, 208), (180, 232, 230))
    line = shore + 0.05 * (fractal_noise(rng, 2, 3)[:1] - 0.5)  # [1, 128]: one height a column
    wet = np.clip((Y - line) / 0.1, 0, 1)
    grain = 0.3 * (fractal_noise(rng, 6, 4, 0.8) - 0.5) + 0.14 * (smooth_noise(rng, 100) - 0.5)
    beach = colour_ramp(0.25 + 0.45 * wet + grain, (170, 134, 92), (224, 192, 138), (248, 230, 190))
    foam = np.clip(1 - np.abs(Y - line) * 52 + 1.3 * (smooth_noise(rng, 30, 22) - 0.5), 0, 1) * 0.9
    image = blend(blend(sky, water, linear_step(Y, horizon, 0.012)), beach, linear_step(Y, line, 0.015))
    image = blend(image, np.ones((SIDE, SIDE, 3), np.float32), foam)
    return image, 0.45 * linear_step(Y, horizon, 0.02) + 0.55 * linear_step(Y, line, 0.04)


def paint_sky(rng: np.random.Generator) -> PaintedBackground:
    """Paint clouds on a blue sky."""
    heap = fractal_noise(rng, 3, 5, 0.52, (1.5, 0.8))
    cover = np.clip((heap - rng.uniform(0.42, 0.5)) * 5, 0, 1)
    shade = np.clip(0.75 + np.gradient(blur_field(heap, 3), axis=0).astype(np.float32) * 22, 0, 1)
    clouds = colour_ramp(shade, (176, 196, 222), (255, 255, 255))
    return blend(colour_ramp(Y, (64, 136, 218), (158, 206, 246)), clouds, cover), 0 * FULL_SHADOWS


def paint_night(rng: np.random.Generator) -> PaintedBackground:
    """Paint stars and a band of light on a night sky."""
    across = (Y - X * rng.uniform(-0.8, 0.8) - rng.uniform(0.1, 0.6)) * 3
    river = np.exp(-np.square(across)) * np.clip(fractal_noise(rng, 3, 5, 0.6) * 2 - 0.6, 0, 1)
    image = colour_ramp(Y * 0.7 + 0.5 * river, (8, 10, 38), (26, 30, 84), (66, 58, 124), (132, 110, 170))
    stars = np.zeros((SIDE, SIDE), np.float32)
    rows, columns = rng.integers(SIDE, size=(2, 80))
    stars[rows, columns] = rng.uniform(0.35, 1, 80)
    rows, columns = rng.integers(1, SIDE - 1, size=(2, 9))  # bright ones have arms
    stars[rows, columns] = 1
    for down, right in ((0, 1), (1, 0), (0, -1), (-1, 0)):
        stars[rows + down, columns + right] = np.maximum(stars[rows + down, columns + right], 0.5)
    return blend(image, np.ones((SIDE, SIDE, 3), np.float32), stars), 0 * FULL_SHADOWS


def paint_sunset(rng: np.random.Generator) -> PaintedBackground:
    """Paint a sunset sky over two ridges."""
    horizon = rng.uniform(0.76, 0.86)
    sky = colour_ramp(Y / horizon, (70, 52, 120), (158, 74, 136), (236, 112, 100), (255, 170, 84), (255, 222, 132))
    bars = np.clip((fractal_noise(rng, 3, 5, 0.5, (3.5, 0.6)) - 0.5) * 5, 0, 0.8)
    sky = blend(sky, colour_ramp(Y / horizon, (112, 70, 140), (232, 112, 122), (255, 190, 140), (255, 244, 196)), bars)
    ridges = [horizon + 0.07 * k + (0.24 - 0.04 * k) * (fractal_noise(rng, 2 + k, 3, 0.4)[:1] - 0.5) for k in range(2)]
    image = blend(sky, colour_ramp(Y, (120, 60, 110), (120, 60, 110)), linear_step(Y, ridges[0], 0.012))
    return blend(image, colour_ramp(Y, (64, 36, 78), (52, 28, 66)), linear_step(Y, ridges[1], 0.012)), 0 * FULL_SHADOWS


def paint_brick(rng: np.random.Generator) -> PaintedBackground:
    """Paint a brick wall with mortar."""
    courses = int(rng.integers(7, 10))
    scaled = Y * courses + rng.random(dtype=np.float32)
    row, within = np.floor(scaled).astype(np.int64), scaled % 1
    along = X * (courses * 0.48) + (row % 2).astype(np.float32) * 0.5 + rng.random(dtype=np.float32)
    column, offset = np.floor(along).astype(np.int64), along % 1
    high, wide = SIDE / courses, SIDE / (courses * 0.48)
    edge = np.minimum(np.minimum(within, 1 - within) * high, np.minimum(offset, 1 - offset) * wide)
    tone = rng.random((courses + 2, 8), np.float32)[row, column % 8]
    bevel = 0.16 * linear_step(within, 0.12, 0.2) * -1 + 0.12
    rough = fractal_noise(rng, 12, 4, 0.75) - 0.5
    bricks = colour_ramp(0.22 + 0.5 * tone + 0.36 * rough + bevel, (104, 40, 30), (168, 74, 52), (210, 124, 92))
    mortar = colour_ramp(0.5 + 0.5 * rough, (128, 116, 106), (180, 168, 156))
    return blend(mortar, bricks, linear_step(edge, 1.2, 1.2)), FULL_SHADOWS


def paint_stone(rng: np.random.Generator) -> PaintedBackground:
    """Paint flagstones: the Voronoi cells of scattered points."""
    cells, half = int(rng.integers(3, 6)), SIDE // 2
    corners = np.mgrid[-1 : cells + 1, -1 : cells + 1].reshape(2, -1).T
    points = (corners + rng.uniform(0.12, 0.88, corners.shape)) / cells
    pixels = np.stack([Y[::2, ::2], X[::2, ::2]], -1).reshape(-1, 2)
    jitter = np.stack([smooth_noise(rng, 9)[::2, ::2], smooth_noise(rng, 9)[::2, ::2]], -1).reshape(-1, 2)
    pixels = pixels + 0.02 * (jitter - 0.5)
    squares = np.square(pixels).sum(1)[:, None] - 2 * pixels @ points.T + np.square(points).sum(1)
    two = np.argpartition(squares, 1, 1)[:, :2]
    near = np.sqrt(np.maximum(np.take_along_axis(squares, two, 1), 0))
    gap = resize_field((near[:, 1] - near[:, 0]).astype(np.float32).reshape(half, half), SIDE, SIDE) * cells
    tone = rng.uniform(-0.2, 0.2, len(points))[two[:, 0]].reshape(half, half).astype(np.float32)
    tones = resize_field(tone, SIDE, SIDE, Image.Resampling.NEAREST)
    light = 0.5 + tones + 0.55 * (fractal_noise(rng, 5, 5, 0.75) - 0.5)
    stones = colour_ramp(light, (96, 96, 100), (150, 150, 150), (204, 202, 194))
    joints = colour_ramp(fractal_noise(rng, 20, 3), (66, 68, 64), (104, 106, 94))
    return blend(joints, stones, linear_step(gap, 0.14, 0.16)), FULL_SHADOWS


LEAF_OUTLINE = np.array(  # outline of a leaf along its stem, in units of its length
    [(-0.5, 0), (-0.3, 0.17), (-0.05, 0.26), (0.2, 0.2), (0.5, 0), (0.2, -0.2), (-0.05, -0.26), (-0.3, -0.17)], float
)
LEAF_COLOURS = (
    (206, 92, 30), (226, 142, 40), (176, 54, 34), (236, 184, 70), (150, 92, 40), (196, 120, 44), (120, 62, 34),
)  # fmt: skip


def paint_leaves(rng: np.random.Generator) -> PaintedBackground:
    """Paint overlapping fallen leaves at twice the size, then reduce them."""
    number, large = 120, 2 * SIDE
    ground = colour_ramp(fractal_noise(rng, 8, 3), (62, 38, 22), (112, 68, 34))
    canvas = Image.fromarray((ground * 255).astype(np.uint8))
    canvas = canvas.resize((large, large))
    brush = ImageDraw.Draw(canvas)
    angle, length = rng.uniform(0, 2 * np.pi, number), rng.uniform(44, 70, number)
    middle = rng.uniform(-10, large + 10, (number, 1, 2))
    turns = np.stack([np.cos(angle), np.sin(angle), -np.sin(angle), np.cos(angle)], -1).reshape(number, 2, 2)
    outlines = middle + length[:, None, None] * (LEAF_OUTLINE @ turns)
    colours = np.asarray(LEAF_COLOURS)[rng.integers(len(LEAF_COLOURS), size=number)]
    colours = colours * rng.uniform(0.78, 1.0, (number, 1))
    for outline, colour in zip(outlines, np.minimum(colours, 255).astype(int), strict=True):
        flat = [tuple(point) for point in outline]
        brush.polygon([(x + 3, y + 4) for x, y in flat], fill=(84, 48, 24))
        brush.polygon(flat, fill=tuple(colour))
        brush.line([flat[0], flat[4]], fill=tuple((colour * 0.72).astype(int)), width=2)
    image = np.asarray(canvas.reduce(2), np.float32) / 255
    return image * (0.85 + 0.3 * smooth_noise(rng, 4))[..., None], FULL_SHADOWS


def paint_water(rng: np.random.Generator) -> PaintedBackground:
    """Paint the view under water: rays from above, caustics and bubbles."""
    fan = resize_field(rng.random((1, 22), np.float32), 1, 2 * SIDE)[0]
    rays = fan[np.clip((X - 0.5) / (0.7 + Y) * 110 + SIDE, 0, 2 * SIDE - 1).astype(np.int64)] * (1 - Y)
    net = 1 - np.abs(2 * fractal_noise(rng, 5, 2, 0.5, (1.5, 0.9)) - 1) * 5
    light = 0.92 - 0.86 * Y + 0.34 * (rays - 0.3) + 0.13 * np.clip(net, -0.4, 1) + 0.1 * (smooth_noise(rng, 40) - 0.5)
    image = colour_ramp(light, (8, 52, 92), (14, 96, 138), (44, 156, 184), (136, 222, 224))
    for _ in range(int(rng.integers(6, 13))):
        row, column, radius = rng.uniform(0, 1), rng.uniform(0, 1), rng.uniform(0.01, 0.026)
        far = np.hypot(Y - row, X - column) / radius
        rim = np.clip(1 - np.abs(far - 1) * 2.2, 0, 1) * 0.6 + 0.12 * (far < 1)
        image = blend(image, np.full((1, 1, 3), (0.86, 0.98, 1), np.float32), rim.astype(np.float32))
    return image, 0 * FULL_SHADOWS


SETTINGS: dict[str, Setting] = {
    "grass": Setting(paint_grass, ("on grass", "on the grass", "on a lawn")),
    "sand": Setting(paint_sand, ("on sand", "on the sand", "in the desert"), (1.02, 1.0, 0.96)),
    "snow": Setting(paint_snow, ("in the snow", "on snow", "on snowy ground"), (0.98, 1.0, 1.02)),
    "wood": Setting(paint_wood, ("on a wooden table", "on wood", "on wooden boards")),
    "sea": Setting(paint_sea, ("by the sea", "at the seaside", "on the beach")),
    "sky": Setting(paint_sky, ("under a cloudy sky", "in the sky", "among clouds")),
    "night": Setting(paint_night, ("under the stars", "under a starry sky", "at night"), (0.86, 0.88, 0.98)),
    "sunset": Setting(paint_sunset, ("at sunset", "in the evening", "at dusk"), (1.0, 0.93, 0.88)),
    "brick": Setting(paint_brick, ("before a brick wall", "in front of a brick wall", "against bricks"), upright=True),
    "stone": Setting(paint_stone, ("on a stone floor", "on stone", "on flagstones")),
    "leaves": Setting(paint_leaves, ("on autumn leaves", "among fallen leaves", "in autumn"), (1.02, 0.99, 0.95)),
    "water": Setting(paint_water, ("under water", "in the water", "in the deep sea"), (0.9, 0.98, 1.0)),
}
