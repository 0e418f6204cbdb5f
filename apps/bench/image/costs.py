"""`polydraft bench costs`: what a pass of N nodes costs here, and what windows commit.

polydraft bench costs --model tiny-image -o runs/bench
polydraft bench costs --model assets/models/tiny-image --write

The second line stores τ by window in the model's manifest, of every method that has a window and that the model can
use; with t(N), measured when a model is first used, it decides the window. τ is measured on training prompts, so that
benches on held-out ones stay honest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.bench.measure import plots, report
from polydraft.apps.bench.measure.decoding import draw
from polydraft.apps.bench.measure.environment import timed_on
from polydraft.apps.bench.measure.manifest import store
from polydraft.apps.commands.shared.terminal import note
from polydraft.apps.train.lessons import LESSONS
from polydraft.core.methods.fit import pass_seconds
from polydraft.modalities.loading import load
from polydraft.modalities.manifest import MANIFEST
from polydraft.modalities.pipeline import WINDOWED, Pipeline, guided

NODES = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48)
WINDOWS = (4, 8, 12, 16, 24, 32)
SEED, REPEATS = 7, 20


def run(*, prompts: int, model: str, write: bool, output: Path | None, json: bool) -> None:
    """Measure, print and, if asked, save and store τ in the manifest."""
    report.check_folder(output)
    pipe = load(model)
    if write:
        report.check_folder(pipe.card.path)
    taken_on = timed_on(pipe.device, pipe.dtype)
    scales = dict.fromkeys((1.0, pipe.sampling().guidance_scale))
    costs = {f"{scale:g}": milliseconds(pipe, scale) for scale in scales}
    methods = [method for method in WINDOWED if method in pipe.available_methods()]
    taus = {method: committed(pipe, method, WINDOWS, prompts) for method in methods}
    told = {f"{method}_committed": found for method, found in taus.items()}
    value = {
        "model": pipe.card.name, "prompts": prompts, "pass_ms": costs, **told, "environment": taken_on,
    }  # fmt: skip
    passes = ["nodes", *(f"ms, guidance {scale}" for scale in costs)]
    pass_rows = [[str(nodes), *(f"{column[nodes]:.2f}" for column in costs.values())] for nodes in NODES]
    windows = ["window", *(f"τ, {method}" for method in methods)]
    window_rows = [[str(window), *(f"{taus[method][str(window)]:.2f}" for method in methods)] for window in WINDOWS]
    sheets = [(passes, pass_rows), (windows, window_rows)]
    report.tell("costs", value, sheets, [], lambda: curves(costs, taus), output, json)
    if write:
        store(pipe.card.path / MANIFEST, told)


def milliseconds(pipe: Pipeline, scale: float) -> dict[int, float]:
    """t(N)."""
    sampling = replace(pipe.sampling(), guidance_scale=scale)
    prompts = [replace(prompt, sampling=sampling) for prompt in pipe.sample_prompts()]
    seconds = pass_seconds(pipe.target(guided(prompts)), prompts, list(NODES), repeats=REPEATS)
    return {nodes: 1000 * value for nodes, value in seconds.items()}


def committed(pipe: Pipeline, method: str, windows: Sequence[int], prompts: int) -> dict[str, float]:
    """τ of the model's windows of `method`, by their size, at its default sampling, over that many training prompts."""
    asked = LESSONS[pipe.card.modality](pipe, SEED).some(np.random.default_rng(SEED), prompts, first=0)
    asked, taus = [replace(prompt, sampling=pipe.sampling()) for prompt in asked], {}
    for window in windows:
        stats = draw(pipe, f"{method}(window={window})", asked, prompts).stats
        assert stats is not None  # only peers have none
        taus[str(window)] = round(stats.mean_accepted_length, 3)
        note(f"{method}, window {window}: τ {taus[str(window)]:.2f}")
    return taus


def curves(costs: dict[str, dict[int, float]], taus: dict[str, dict[str, float]]) -> Image.Image:
    """t(N) on the left, τ(window) on the right."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for scale, column in costs.items():
        left.plot(list(column), list(column.values()), marker="o", label=f"guidance {scale}")
    left.set(xlabel="nodes", ylabel="ms a pass")
    for method, found in taus.items():
        right.plot([int(window) for window in found], list(found.values()), marker="o", label=method)
    right.set(xlabel="window", ylabel="τ, tokens a pass")
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.set_ylim(0, 1.1 * axes.dataLim.ymax)  # from zero, or small differences would look large
        axes.spines[["top", "right"]].set_visible(False)
    return plots.rendered(figure)
