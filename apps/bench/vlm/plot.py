"""A picture of a run: S inside τ, a panel a set and a bar a method."""

from __future__ import annotations

from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.bench.measure.plots import COLOURS, rendered
from polydraft.apps.bench.vlm.summary import Line


def panels(found: list[Line]) -> Image.Image:
    """One panel a set, from top to bottom."""
    tasks = list(dict.fromkeys(line.task for line in found))
    methods = len({line.method for line in found})
    drawing = Figure(figsize=(7, len(tasks) * (0.8 + 0.36 * methods) + 0.5), layout="constrained")
    for axes, task in zip(drawing.subplots(len(tasks), 1, squeeze=False)[:, 0], tasks, strict=True):
        lines = [line for line in found if line.task == task]
        names = [line.method for line in lines]
        axes.barh(names, [line.tau or 0 for line in lines], 0.75, color=COLOURS["tau"], label="τ, tokens a pass")
        axes.barh(names, [line.speedup or 0 for line in lines], 0.4, color=COLOURS["S"], label="S, times plain")
        axes.axvline(1, color="#8a8f98", linewidth=1)
        axes.set_title(task, loc="left")
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=2)
    return rendered(drawing)
