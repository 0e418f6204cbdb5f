"""Pictures of benches, as PIL images.

bars(blocks).show()
"""

from __future__ import annotations

import io

import matplotlib
from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.measure.table import PHASES, ResultBlock

matplotlib.use("Agg")
COLOURS = {"S": "#2d6ec8", "tau": "#c9d6ea"}
SHADES = {"draft": "#f5be32", "score": "#2d6ec8", "verify": "#3cb478", "rest": "#8a8f98"}


def bars(blocks: list[ResultBlock]) -> Image.Image:
    """Plot a row per block: S inside τ on the left, the time of a pass by part on the right."""
    tallest = max(len(block.rows) for block in blocks)
    figure = Figure(figsize=(11, len(blocks) * (1.1 + 0.42 * tallest)), layout="constrained")
    grid = figure.subplots(len(blocks), 2, squeeze=False)
    for (left, right), block in zip(grid, blocks, strict=True):
        names = [row.method for row in block.rows]
        left.barh(names, [row.tau or 0 for row in block.rows], 0.75, color=COLOURS["tau"], label="τ, tokens a pass")
        found = [row.speedup.median for row in block.rows]
        left.barh(names, found, 0.4, color=COLOURS["S"], label="S, times the baseline")
        left.axvline(1, color="#8a8f98", linewidth=1)
        left.set_title(block.title, loc="left")
        left.invert_yaxis()
        ours = [row for row in block.rows if row.pass_ms is not None and row.split]
        start = [0.0] * len(ours)
        for phase in PHASES:
            widths = [row.split[phase] * (row.pass_ms or 0) for row in ours]
            right.barh([row.method for row in ours], widths, 0.6, left=start, color=SHADES[phase], label=phase)
            start = [a + b for a, b in zip(start, widths, strict=True)]
        right.set_title("ms a pass", loc="left")
        right.invert_yaxis()
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
    for axes, columns in zip(grid[-1], (2, 4), strict=True):
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=columns)
    return rendered(figure)


def rendered(figure: Figure) -> Image.Image:
    """Render the figure as an image."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    buffer.seek(0)
    return Image.open(buffer, formats=("PNG",)).convert("RGB")
