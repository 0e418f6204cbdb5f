"""A picture as it fills in: what is drawn, what is not yet, and on top the runs in the colours of their passes."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

from PIL import Image

from polydraft.apps.ui.views.runs import TokenRun, runs
from polydraft.apps.ui.views.stage import left_out
from polydraft.modalities.image.result import encode_image


def picture(drawn: Image.Image | None, passes: Sequence[int], grid: tuple[int, int], alt: str) -> str:
    """`drawn` under its runs. passes: which target pass (from 1) made each token of `grid`, row by row; 0 for none."""
    rows, columns = grid
    made = runs(passes)
    done = max((run.end for run in made), default=0)
    below = "" if drawn is None else f'<img src="{data_url(drawn)}" alt="" decoding="sync">'
    shapes = "".join(
        f'<path class="run shade-{run.shade}" d="{outline(run.start, run.end, columns)}"><title>{run}</title></path>'
        for run in made
    )
    rest = "" if done == rows * columns else undrawn(done, rows, columns)
    newest = made[-1] if made and rest else None
    front = f'<path class="newest" d="{outline(newest.start, newest.end, columns)}"/>' if newest else ""
    return (
        f'<div class="picture" role="img" aria-label="{escape(alt)}">{below}'
        f'<svg viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" aria-hidden="true">'
        f'{rest}<g class="runs">{shapes}</g>{front}</svg></div>'
    )


def undrawn(done: int, rows: int, columns: int) -> str:
    """Return the cover of the cells from `done` on, with a grid."""
    cover = f'<path class="undrawn" d="{outline(done, rows * columns, columns)}"/>'
    top = -(-done // columns)
    lines = [f"M0 {row}H{columns}" for row in range(top, rows)] + [f"M{at} {top}V{rows}" for at in range(1, columns)]
    return f'{cover}<path class="grid" d="{"".join(lines)}"/>'


def outline(start: int, end: int, columns: int) -> str:
    """Return the SVG path around cells `start` to `end` (exclusive) of a grid in raster order."""
    (top, left), (bottom, right) = divmod(start, columns), divmod(end - 1, columns)
    if top == bottom:
        return f"M{left} {top}H{right + 1}V{top + 1}H{left}Z"
    return f"M{left} {top}H{columns}V{bottom}H{right + 1}V{bottom + 1}H0V{top + 1}H{left}Z"


def data_url(image: Image.Image, notes: Mapping[str, str] | None = None) -> str:
    """Return an image as a PNG in a `data:` URL; notes become its text chunks."""
    return f"data:image/png;base64,{base64.b64encode(encode_image(image, 'PNG', notes or {})).decode()}"


def differences(prompt: str, caption: str, ignored: Sequence[str]) -> list[str]:
    """Return sentences: what is drawn, where that is not the prompt, and what of the prompt is not."""
    drawn = f"Drawn: {caption}." if caption and caption != prompt.lower() else ""
    return [drawn, left_out(ignored, "drawn")]


__all__ = ["TokenRun", "data_url", "differences", "outline", "picture"]
