"""Draw which target pass committed which words: `polydraft chat frogs.png "Describe the picture." --map runs.png`.

The answer stands beside the first picture, word by word on the colour of its pass: a run of one colour came out of one
pass. The bars below are as long as the number of passes, as in the maps of drawn pictures.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from polydraft.apps.cli.maps.drawing import BAR, COLOURS, INK, MARGIN, PAPER, TEXT, bars, font, shorten
from polydraft.modalities.image.result import check_output, write_image

if TYPE_CHECKING:
    from polydraft.modalities.vlm.result import ChatResult

SIDE, WIDTH = 320, 640  # pixels: the picture's longer side, the text's width
LINE = 2 * TEXT
LIGHT = 0.6  # how far a run's colour goes to white


def save_answer_map(result: ChatResult, picture: Image.Image | None, question: str, path: str | Path) -> Path:
    """Write the map of the first answer, whole or not at all; raises OutputUnwritable."""
    notes = {"prompt": question, "method": result.method, "software": "polydraft"}
    return write_image(answer_map(result, picture, question), check_output(path), notes)


def answer_map(result: ChatResult, picture: Image.Image | None, question: str) -> Image.Image:
    """Return the words of the first answer coloured by pass, beside its image."""
    left = MARGIN if picture is None else 2 * MARGIN + SIDE
    lines = laid_out(result.runs)
    top = MARGIN + TEXT + MARGIN
    below = top + max(len(lines) * LINE, 0 if picture is None else SIDE) + MARGIN
    sheet = Image.new("RGB", (left + WIDTH + MARGIN, below + 2 * (BAR + 10) + MARGIN - 10), PAPER)
    draw = ImageDraw.Draw(sheet)
    stats = result.row_stats[0]
    if picture is not None:
        scale = SIDE / max(picture.size)
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        sheet.paste(picture.convert("RGB").resize(size, Image.Resampling.LANCZOS), (MARGIN, top))
        draw.text((MARGIN, MARGIN), shorten(question, SIDE), font=font(), fill=INK, anchor="lt")
    headline = f"{result.method}: {stats.target_passes} passes, τ {stats.mean_accepted_length:.2f}"
    draw.text((left, MARGIN), headline, font=font(), fill=INK, anchor="lt")
    for row, line in enumerate(lines):
        for x, number, text in line:
            y, colour = top + row * LINE, COLOURS[(number - 1) % len(COLOURS)]
            fill = tuple(round(LIGHT * 255 + (1 - LIGHT) * channel) for channel in colour)
            draw.rectangle((left + x, y, left + x + font().getlength(text), y + LINE - 4), fill=fill)
            draw.text((left + x, y + LINE // 2 - 2), text, font=font(), fill=INK, anchor="lm")
    bars(draw, below, sheet.width, np.bincount(result.passes.numpy())[1:], len(result.tokens))
    return sheet


def laid_out(runs: list[str]) -> list[list[tuple[float, int, str]]]:
    """Return lines of (x, pass, text), wrapped to the width; words of one run on a line are one text."""
    lines: list[list[tuple[float, int, str]]] = [[]]
    x = 0.0
    for number, text in enumerate(runs, 1):
        for word in re.findall(r"\s*\S+|\s+$", text):
            if "\n" in word or x + font().getlength(word) > WIDTH:
                lines.append([])
                x = 0.0
            shown = word.strip() if x == 0 else word.replace("\n", " ")
            lines[-1].append((x, number, shown))
            x += font().getlength(shown)
    return [[join_pieces(list(words)) for _, words in groupby(line, lambda part: part[1])] for line in lines]


def join_pieces(words: list[tuple[float, int, str]]) -> tuple[float, int, str]:
    return words[0][0], words[0][1], "".join(text for _, _, text in words)
