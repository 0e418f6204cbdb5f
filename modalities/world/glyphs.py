"""Glyphs of the emoji dataset: 66 kinds in two sizes, one small RGBA sheet for every size in `assets/world/`.

The sheets are rasters of Noto Color Emoji (SIL OFL 1.1), so the font is not needed to render, train or score.
Rebuild them from an installed font with `python -m polydraft.modalities.world.glyphs path/to/NotoColorEmoji.ttf`.
"""

from __future__ import annotations

import functools
import sys
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

KINDS: dict[str, str] = {
    "cat": "🐱", "dog": "🐶", "fox": "🦊", "bear": "🐻", "panda": "🐼", "koala": "🐨", "rabbit": "🐰", "monkey": "🐵",
    "lion": "🦁", "tiger": "🐯", "cow": "🐮", "pig": "🐷", "frog": "🐸", "chicken": "🐔", "penguin": "🐧",
    "octopus": "🐙", "bee": "🐝", "butterfly": "🦋", "turtle": "🐢", "fish": "🐟", "whale": "🐳", "unicorn": "🦄",
    "ghost": "👻", "robot": "🤖", "apple": "🍎", "banana": "🍌", "strawberry": "🍓", "watermelon": "🍉", "grapes": "🍇",
    "cherries": "🍒", "donut": "🍩", "cake": "🎂", "burger": "🍔", "pizza": "🍕", "mushroom": "🍄", "pumpkin": "🎃",
    "rocket": "🚀", "car": "🚗", "bus": "🚌", "train": "🚆", "helicopter": "🚁", "ship": "🚢", "sailboat": "⛵",
    "bicycle": "🚲", "house": "🏠", "tent": "⛺", "tree": "🌳", "cactus": "🌵", "tulip": "🌷", "sunflower": "🌻",
    "rainbow": "🌈", "star": "⭐", "moon": "🌙", "sun": "🌞", "fire": "🔥", "snowman": "⛄", "umbrella": "🌂",
    "guitar": "🎸", "ball": "⚽", "basketball": "🏀", "balloon": "🎈", "gift": "🎁", "key": "🔑", "gem": "💎",
    "crown": "👑", "hat": "🎩",
}  # fmt: skip
GLYPH_SIZES: dict[str, int] = {"large": 56, "small": 32}  # pixels; multiples of the tokenizer's 8-pixel cell
SHEET_COLUMNS = 11


@functools.cache
def load_sheet(size: str) -> dict[str, NDArray[np.float32]]:
    """Load the glyphs of a size.

    Args:
        size (str): "large" or "small".

    Returns:
        dict[str, NDArray]: by kind, `[S, S, 4]` RGBA in 0..1 with straight alpha.
    """
    side = GLYPH_SIZES[size]
    resource = files("polydraft.assets") / "world" / f"glyphs-{size}.png"
    with as_file(resource) as path, Image.open(path, formats=("PNG",)) as image:
        pixels = np.asarray(image.convert("RGBA"), np.float32) / 255.0
    cells = {}
    for index, kind in enumerate(KINDS):
        row, column = divmod(index, SHEET_COLUMNS)
        cells[kind] = pixels[row * side : (row + 1) * side, column * side : (column + 1) * side]
    return cells


def render_sheet(font_path: Path, side: int) -> Image.Image:
    """Render a sheet of all kinds, each centred in a cell of `side` pixels with a margin of one pixel."""
    font = ImageFont.truetype(str(font_path), 109)  # the font's only bitmap strike
    rows = -(-len(KINDS) // SHEET_COLUMNS)
    canvas = Image.new("RGBA", (SHEET_COLUMNS * side, rows * side))
    for index, character in enumerate(KINDS.values()):
        glyph = Image.new("RGBA", (160, 160))
        ImageDraw.Draw(glyph).text((10, 10), character, font=font, embedded_color=True)
        glyph = glyph.crop(glyph.getbbox())
        scale = (side - 2) / max(glyph.size)
        width, height = (max(1, round(extent * scale)) for extent in glyph.size)
        # Colours are premultiplied for resampling, otherwise transparent black bleeds into the edges.
        glyph = glyph.convert("RGBa").resize((width, height), Image.Resampling.LANCZOS).convert("RGBA")
        row, column = divmod(index, SHEET_COLUMNS)
        canvas.paste(glyph, (column * side + (side - width) // 2, row * side + (side - height) // 2))
    return canvas


def main() -> None:
    """Render and save the sheets from a font file."""
    target = Path(__file__).parents[2] / "assets" / "world"
    target.mkdir(parents=True, exist_ok=True)
    for size, side in GLYPH_SIZES.items():
        render_sheet(Path(sys.argv[1]), side).save(target / f"glyphs-{size}.png", optimize=True)


if __name__ == "__main__":
    main()
