"""`polydraft bench costs`: time of a pass of N nodes on this machine, and τ by window size.

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

from polydraft.apps.data.built_in_prompts import BUILT_IN_PROMPTS, prompt_kind
from polydraft.apps.measure import plots, report
from polydraft.apps.measure.decoding import draw
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.manifest import store
from polydraft.apps.terminal.terminal import note
from polydraft.core.methods.tuning import median_pass_seconds
from polydraft.modalities.loading import load
from polydraft.modalities.manifest import MANIFEST
from polydraft.modalities.pipeline import WINDOWED_METHODS, Pipeline, uses_cfg

NODES = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48)
WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SEED, REPEATS = 7, 20


def run(*, prompts: int, model: str, write: bool, output: Path | None, json: bool) -> None:
    """Measure, print and, if asked, save and store τ in the manifest."""
    report.check_folder(output)
    pipe = load(model)
    if write:
        report.check_folder(pipe.card.path)
    taken_on = timed_on(pipe.device, pipe.dtype)
    scales = dict.fromkeys((1.0, pipe.sampling_params().guidance_scale))
    costs = {f"{scale:g}": pass_milliseconds(pipe, scale) for scale in scales}
    methods = [method for method in WINDOWED_METHODS if method in pipe.available_methods()]
    taus = {method: window_taus(pipe, method, WINDOWS, prompts) for method in methods}
    measured_taus = {f"{method}_committed": tau_by_window for method, tau_by_window in taus.items()}
    value = {
        "model": pipe.card.name, "prompts": prompts, "pass_ms": costs, **measured_taus, "environment": taken_on,
    }  # fmt: skip
    passes = ["nodes", *(f"ms, guidance {scale}" for scale in costs)]
    pass_rows = [[str(nodes), *(f"{column[nodes]:.2f}" for column in costs.values())] for nodes in NODES]
    windows = ["window", *(f"τ, {method}" for method in methods)]
    window_rows = [[str(window), *(f"{taus[method][str(window)]:.2f}" for method in methods)] for window in WINDOWS]
    sheets = [(passes, pass_rows), (windows, window_rows)]
    report.tell("costs", value, sheets, [], lambda: plot_curves(costs, taus), output, json)
    if write:
        store(pipe.card.path / MANIFEST, measured_taus)


def pass_milliseconds(pipe: Pipeline, scale: float) -> dict[int, float]:
    """Return the milliseconds of a pass by number of nodes."""
    sampling = replace(pipe.sampling_params(), guidance_scale=scale)
    prompts = [replace(prompt, sampling_params=sampling) for prompt in pipe.sample_prompts()]
    seconds = median_pass_seconds(pipe.target(uses_cfg(prompts)), prompts, list(NODES), repeats=REPEATS)
    return {nodes: 1000 * value for nodes, value in seconds.items()}


def window_taus(pipe: Pipeline, method: str, windows: Sequence[int], prompts: int) -> dict[str, float]:
    """Return τ of a windowed method by window size, at default sampling, over `prompts` training prompts."""
    lessons = BUILT_IN_PROMPTS[prompt_kind(pipe.card)](pipe, SEED)
    training_prompts = lessons.sample_prompts(np.random.default_rng(SEED), prompts, first=0)
    training_prompts, taus = (
        [replace(prompt, sampling_params=pipe.sampling_params()) for prompt in training_prompts],
        {},
    )
    for window in windows:
        stats = draw(pipe, f"{method}(window={window})", training_prompts, prompts).stats
        assert stats is not None  # only peers have none
        taus[str(window)] = round(stats.mean_accepted_length, 3)
        note(f"{method}, window {window}: τ {taus[str(window)]:.2f}")
    return taus


def plot_curves(costs: dict[str, dict[int, float]], taus: dict[str, dict[str, float]]) -> Image.Image:
    """Plot t(N) on the left and τ(window) on the right."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for scale, column in costs.items():
        left.plot(list(column), list(column.values()), marker="o", label=f"guidance {scale}")
    left.set(xlabel="nodes", ylabel="ms a pass")
    for method, tau_by_window in taus.items():
        right.plot([int(window) for window in tau_by_window], list(tau_by_window.values()), marker="o", label=method)
    right.set(xlabel="window", ylabel="τ, tokens a pass")
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.set_ylim(0, 1.1 * axes.dataLim.ymax)  # from zero, or small differences would look large
        axes.spines[["top", "right"]].set_visible(False)
    return plots.rendered(figure)
