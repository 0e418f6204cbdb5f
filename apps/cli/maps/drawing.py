"""Drawing of maps: a colour per pass, bars as long as the number of passes, and text."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ImageDraw, ImageFont

MARGIN = 24
BAR = 18
TEXT = 17
PAPER, INK, PALE, EMPTY = (255, 255, 255), (32, 36, 44), (120, 126, 138), (205, 208, 214)
COLOURS = (  # neighbours differ in hue and in lightness
    (230, 85, 60), (45, 110, 200), (245, 190, 50), (110, 65, 165), (60, 180, 120), (215, 70, 140), (60, 190, 215),
)  # fmt: skip


def bars(draw: ImageDraw.ImageDraw, top: int, width: int, counts: NDArray[np.int64], tokens: int) -> None:
    """Draw the passes of plain decoding, one per token, and those of the method, coloured by their tokens."""
    labels = (f"plain {tokens} passes", f"drafted {len(counts)} passes")
    left = MARGIN + int(max(font().getlength(label) for label in labels)) + 12
    length = width - MARGIN - left
    edges = [left + round(length * index / tokens) for index in range(tokens + 1)]
    for row, (label, count) in enumerate(zip(labels, (tokens, len(counts)), strict=True)):
        y = top + row * (BAR + 10)
        draw.text((MARGIN, y + BAR // 2), label, font=font(), fill=PALE if row == 0 else INK, anchor="lm")
        for index in range(count):
            shade = (EMPTY, (188, 192, 200))[index % 2] if row == 0 else COLOURS[index % len(COLOURS)]
            draw.rectangle((edges[index], y, edges[index + 1] - 1, y + BAR), fill=shade)


@functools.cache
def font() -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, which comes with matplotlib and has a τ."""
    import matplotlib

    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")), TEXT)


def shorten(text: str, width: int) -> str:
    """`text` on one line of `width` pixels."""
    text = " ".join(text.split())
    if font().getlength(text) <= width:
        return text
    while text and font().getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"
