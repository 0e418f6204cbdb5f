"""`polydraft bench rows`: cost of joining and leaving rows relative to a pass over all, and memory of a run.

polydraft bench rows --shape smolvlm --rows 64 --length 512 -o runs/bench

A row in the middle leaves (the last moves into its place) and another joins, once without its prefill, which is the
bookkeeping alone, and once with it. The pool grows where it is full, by an eighth: that is timed once, as one join of
several. Memory is the peak of a fresh process less what it began with (and less what loading freed), compared with the
weights and the keys and values of live rows. Rows hold random keys and values.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from polydraft.apps.bench.engine import memory
from polydraft.apps.measure import plots, report, shapes
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.filled import filled_batch, passes, plain, prompt_of
from polydraft.apps.measure.timing import Spread, timed
from polydraft.apps.terminal.terminal import note
from polydraft.core.decode import Batch, add_requests, remove_requests
from polydraft.core.target.causal import CausalTarget, PrefillOutput, PromptInputs
from polydraft.core.target.state import BatchState
from polydraft.modalities.device_dtype import resolve_device, resolve_dtype

COSTS = ["what", "ms", "share of a pass"]
MEMORY = ["memory", "MB"]
PASSES = 3  # timed together
MB = 1e6


class Unread(CausalTarget):
    """Target that skips the forward pass of prompts."""

    def __init__(self, target: CausalTarget) -> None:
        self.__dict__.update(target.__dict__)

    def run_prefill(
        self, state: BatchState, prompts: list[PromptInputs], ids: Tensor, lengths: Tensor, rows: slice
    ) -> PrefillOutput:
        return PrefillOutput(ids, lengths, torch.zeros(*lengths.shape, ids.shape[1], 1, device=self.device))


def run(
    *, shape: str, rows: int, length: int, prompt: int, repeats: int, device: str, dtype: str, output: Path | None,
    json: bool,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    where = resolve_device(device)
    precision = resolve_dtype(dtype, where)
    shapes.check(shape)
    taken_on = timed_on(where, precision)
    note("memory, in a separate process")
    needed: dict[str, Any] = memory.apart(shape, rows, length, prompt, where, precision)
    target = shapes.target_of(shape, where, precision)
    costs = measure_rows(target, rows, length, prompt, repeats)
    needed["over"] = needed["peak"] / (needed["weights"] + needed["live"])
    value = {
        "shape": shape, "rows": rows, "length": length, "prompt": prompt, "repeats": repeats, "costs": costs,
        "memory": needed, "environment": taken_on,
    }  # fmt: skip
    sheets = [(COSTS, cost_cells(costs)), (MEMORY, memory_cells(needed))]
    caption = f"{rows} rows of {length} positions; who joins brings a prompt of {prompt}"
    report.tell("rows", value, sheets, [caption], lambda: bars(costs, needed), output, json)


def measure_rows(target: CausalTarget, rows: int, length: int, prompt: int, repeats: int) -> dict[str, Any]:
    """Return seconds and share of a pass for every part, as spreads over rounds; grow is timed once."""
    method, new, budget = plain(target), itertools.count(rows), PASSES + 1  # rows are rolled back
    batch, bare = filled_batch(method, rows, length, budget), replace(method, target=Unread(target))

    def going() -> float:
        return timed(partial(remove_requests, batch, {batch.running[len(batch) // 2].id: "cancelled"})).seconds

    def coming(how: Any) -> float:
        return timed(partial(add_requests, how, batch, [prompt_of(target, prompt, budget)], [next(new)])).seconds

    rounds = []
    for turn in range(repeats + 1):  # the first warms up
        note(f"round {turn} of {repeats}")
        found = {"pass": passes(method, batch, PASSES).pace, "leave": going(), "join": coming(bare)}
        going()
        found["join with its prefill"] = coming(method)
        rounds.append(found)
    costs = {name: compared(rounds[1:], name) for name in rounds[0]}
    grown = coming(bare)
    assert grew(batch, rows)
    one = Spread.from_samples([grown])
    return costs | {
        "join that grows the pool": {
            "seconds": asdict(one),
            "share": asdict(Spread.from_samples([grown / costs["pass"]["seconds"]["median"]])),
        }
    }


def grew(batch: Batch, rows: int) -> bool:
    cache = batch.state.cache
    return cache.num_live_rows > rows * cache.num_branches and cache.num_rows >= cache.num_live_rows


def compared(rounds: list[dict[str, float]], name: str) -> dict[str, Any]:
    return {
        "seconds": asdict(Spread.from_samples(found[name] for found in rounds)),
        "share": asdict(Spread.from_samples(found[name] / found["pass"] for found in rounds)),
    }


def cost_cells(costs: dict[str, Any]) -> list[list[str]]:
    return [
        [name, f"{1e3 * cost['seconds']['median']:.2f}", f"{100 * cost['share']['median']:.1f} %"]
        for name, cost in costs.items()
    ]


def memory_cells(needed: dict[str, Any]) -> list[list[str]]:
    named = {
        "weights, each once": needed["weights"], "keys and values of live rows": needed["live"],
        "pool of keys and values, as stored": needed["stored"], "peak of the run": needed["peak"],
        "peak of loading": needed["loading"],
        "Python and its libraries, not counted above": needed["before"],
    }  # fmt: skip
    cells = [[name, f"{size / MB:.1f}"] for name, size in named.items()]
    return [*cells, ["peak over weights and live rows", f"{needed['over']:.2f} ×"]]


def bars(costs: dict[str, Any], needed: dict[str, Any]) -> Image.Image:
    """Plot ms relative to a pass on the left and memory on the right."""
    figure = Figure(figsize=(11, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.barh(list(costs), [1e3 * cost["seconds"]["median"] for cost in costs.values()], color=plots.COLOURS["S"])
    left.set(xlabel="ms")
    start = 0.0
    for name, colour in (("weights", "#2d6ec8"), ("live", "#3cb478")):
        right.barh(["needed"], [needed[name] / MB], left=start, color=colour, label=name)
        start += needed[name] / MB
    right.barh(["peak"], [needed["peak"] / MB], color="#8a8f98")
    right.set(xlabel="MB")
    right.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    for axes in (left, right):
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    return plots.rendered(figure)
