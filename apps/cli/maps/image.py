"""Draw which target pass committed which token: `polydraft image … --map passes.png`, or

    from polydraft.apps.cli.maps.image import acceptance_map
    acceptance_map(generate_image("two frogs on a blue background")).show()

Each picture stands beside a copy whose token cells are tinted by pass: a run of one colour came out of one pass. The
bars below are as long as the number of passes, plain decoding above and the method under it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from polydraft.apps.cli.maps.drawing import BAR, COLOURS, EMPTY, INK, MARGIN, PAPER, TEXT, bars, font, shorten
from polydraft.modalities.image.result import check_output, write_image

if TYPE_CHECKING:
    from polydraft.core.stats import DecodeStats
    from polydraft.modalities.image.result import ImageResult

SCALE = 4
TINT, FADE = 0.55, 0.75  # share of the pass's colour; how far the picture under it goes to grey


def save_map(result: ImageResult, path: str | Path) -> Path:
    """Write the map of all pictures, whole or not at all; raises OutputUnwritable."""
    notes = {"prompt": "\n".join(result.prompts), "method": result.method, "software": "polydraft"}
    return write_image(acceptance_map(result), check_output(path), notes)


def acceptance_map(result: ImageResult) -> Image.Image:
    """Return one panel per image on a near-square grid."""
    panels = [
        panel(picture, passes.view(result.grid).numpy(), stats, prompt)
        for picture, passes, stats, prompt in zip(
            result.images, result.passes, result.row_stats, result.prompts, strict=True
        )
    ]
    width, height = panels[0].size
    columns = int(np.ceil(np.sqrt(len(panels) / 2)))  # a panel is about twice as wide as high
    rows = -(-len(panels) // columns)
    sheet = Image.new("RGB", (columns * width, rows * height), PAPER)
    for index, part in enumerate(panels):
        row, column = divmod(index, columns)
        sheet.paste(part, (column * width, row * height))
    return sheet


def panel(picture: Image.Image, passes: NDArray[np.int64], stats: DecodeStats, prompt: str) -> Image.Image:
    """Prompt, picture, map and bars. passes: `[rows, columns]`, from 1; 0 where a token is missing."""
    side = (picture.width * SCALE, picture.height * SCALE)
    large = picture.resize(side, Image.Resampling.LANCZOS)
    right = MARGIN + side[0] + MARGIN
    top = MARGIN + TEXT + MARGIN // 2
    legend = top + side[1] + MARGIN
    width = right + side[0] + MARGIN
    sheet = Image.new("RGB", (width, legend + 2 * (BAR + 10) + MARGIN - 10), PAPER)
    sheet.paste(large, (MARGIN, top))
    sheet.paste(tinted(large, passes), (right, top))
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN), shorten(prompt, side[0]), font=font(), fill=INK, anchor="lt")
    headline = f"{stats.method}: {stats.target_passes} passes, τ {stats.mean_accepted_length:.2f}"
    draw.text((right, MARGIN), headline, font=font(), fill=INK, anchor="lt")
    counts = np.bincount(passes[passes > 0].ravel())[1:]
    bars(draw, legend, width, counts, int(passes.size))
    return sheet


def tinted(picture: Image.Image, passes: NDArray[np.int64]) -> Image.Image:
    """`picture` with every cell in the colour of its pass, and lines where the pass changes."""
    rows, columns = passes.shape
    width, height = picture.size
    cells = np.array([EMPTY, *COLOURS], np.float32)[np.where(passes > 0, (passes - 1) % len(COLOURS) + 1, 0)]
    colour = cells.repeat(height // rows, 0).repeat(width // columns, 1)
    pixels = np.asarray(picture, np.float32)
    grey = np.asarray(picture.convert("L"), np.float32)[..., None]
    under = FADE * grey + (1 - FADE) * pixels
    under = 128 + (under - 128) * 1.1
    mixed = np.clip(TINT * colour + (1 - TINT) * under, 0, 255).astype(np.uint8)
    canvas = Image.fromarray(mixed)
    draw, step_x, step_y = ImageDraw.Draw(canvas), width // columns, height // rows
    for row in range(rows):
        for column in range(columns):
            x, y = column * step_x, row * step_y
            if column and passes[row, column] != passes[row, column - 1]:
                draw.line((x, y, x, y + step_y), fill=PAPER, width=2)
            if row and passes[row, column] != passes[row - 1, column]:
                draw.line((x, y, x + step_x, y), fill=PAPER, width=2)
    return canvas
