"""`polydraft bench noise`: sampling time per position of a large vocabulary: noise, filters, choice.

polydraft bench noise --vocab 152000 --columns 16 -o runs/bench

Logits are random, with the deviation of language models' logits; noise is the shared Gumbel noise.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.measure import plots, report
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.timing import Contender, Run, pace, take_turns, timed
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.params import SamplingParams, SamplingTensors
from polydraft.core.sampling.sampler import Sampler
from polydraft.modalities.device_dtype import resolve_device

SPREAD = 3.0  # standard deviation of logits
FILTERS = {
    "top-k 50": SamplingParams(top_k=50), "top-p 0.9": SamplingParams(top_p=0.9),
    "top-k 50 and top-p 0.9": SamplingParams(top_k=50, top_p=0.9),
}  # fmt: skip
HEADERS = ["part", "ms a column", "least", "most"]


def run(*, vocab: int, columns: int, repeats: int, device: str, output: Path | None, json: bool) -> None:
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    torch_device = resolve_device(device)
    taken_on = timed_on(torch_device, torch.float32)
    runs = take_turns(contenders(vocab, columns, torch_device), repeats)
    rows = [{"part": name, "seconds": asdict(pace(turns))} for name, turns in runs.items()]  # a column
    value = {"vocab": vocab, "columns": columns, "repeats": repeats, "rows": rows, "environment": taken_on}
    message = f"{columns} columns of {vocab} ids at once, logits of spread {SPREAD:g}"
    sheet = (HEADERS, [cells_of(row) for row in rows])
    report.tell("noise", value, [sheet], [message], lambda: plot_bars(rows), output, json)


def contenders(vocab: int, columns: int, device: torch.device) -> list[Contender]:
    """Return the parts of sampling `columns` tokens of one sequence."""
    generator = torch.Generator(device).manual_seed(0)
    logits = SPREAD * torch.randn(1, columns, vocab, generator=generator, device=device)
    zeros = torch.zeros(1, dtype=torch.long, device=device)
    shared_noise = partial(
        Noise(zeros, zeros, zeros, zeros.bool(), [1.0], vocab, uses_shared_noise=True).gumbel_at,
        torch.arange(columns, device=device)[None],
    )
    sampler = Sampler()
    distribution = sampler(logits, SamplingTensors.from_params([SamplingParams()], device))
    works: dict[str, Any] = {"noise": shared_noise}
    for name, params in FILTERS.items():
        works[name] = partial(sampler, logits, SamplingTensors.from_params([params], device))
    works["choice"] = partial(distribution.argmax_with_noise, shared_noise())
    return [Contender(name, partial(time_position, work, columns)) for name, work in works.items()]


@torch.inference_mode()
def time_position(work: Any, columns: int) -> Run:
    """Time a call as a run of `columns` tokens."""
    return Run(timed(work).seconds, columns)


def cells_of(row: dict[str, Any]) -> list[str]:
    return [row["part"], *(f"{1e3 * row['seconds'][which]:.3f}" for which in ("median", "low", "high"))]


def plot_bars(rows: list[dict[str, Any]]) -> Image.Image:
    figure = Figure(figsize=(8, 1 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.barh([row["part"] for row in rows], [1e3 * row["seconds"]["median"] for row in rows], color=plots.COLOURS["S"])
    axes.invert_yaxis()
    axes.set(xlabel="ms a column")
    axes.spines[["top", "right"]].set_visible(False)
    return plots.rendered(figure)
