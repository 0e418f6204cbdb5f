"""`polydraft bench noise`: what a column of a large vocabulary costs apart from the network: noise, filters, choice.

polydraft bench noise --vocab 152000 --columns 16 -o runs/bench

Logits are random, with the spread that language models' have; noise is the tape's.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.bench.measure import plots, report
from polydraft.apps.bench.measure.environment import timed_on
from polydraft.apps.bench.measure.timing import Contender, Run, pace, take_turns, timed
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Sampler, Sampling, Settings
from polydraft.modalities.loading import resolve_device

SPREAD = 3.0  # standard deviation of logits
FILTERS = {
    "top-k 50": Sampling(top_k=50), "top-p 0.9": Sampling(top_p=0.9),
    "top-k 50 and top-p 0.9": Sampling(top_k=50, top_p=0.9),
}  # fmt: skip
HEADERS = ["part", "ms a column", "least", "most"]


def run(*, vocab: int, columns: int, repeats: int, device: str, output: Path | None, json: bool) -> None:
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    where = resolve_device(device)
    taken_on = timed_on(where, torch.float32)
    runs = take_turns(contenders(vocab, columns, where), repeats)
    rows = [{"part": name, "seconds": asdict(pace(turns))} for name, turns in runs.items()]  # a column
    value = {"vocab": vocab, "columns": columns, "repeats": repeats, "rows": rows, "environment": taken_on}
    told = f"{columns} columns of {vocab} ids at once, logits of spread {SPREAD:g}"
    sheet = (HEADERS, [cells_of(row) for row in rows])
    report.tell("noise", value, [sheet], [told], lambda: bars(rows), output, json)


def contenders(vocab: int, columns: int, device: torch.device) -> list[Contender]:
    """The parts of drawing `columns` tokens of one row."""
    generator = torch.Generator(device).manual_seed(0)
    logits = SPREAD * torch.randn(1, columns, vocab, generator=generator, device=device)
    zeros = torch.zeros(1, dtype=torch.long, device=device)
    drawn = partial(
        Noise(zeros, zeros, zeros, zeros.bool(), [1.0], vocab, on_tape=True).tape,
        torch.arange(columns, device=device)[None],
    )
    sampler = Sampler()
    law = sampler(logits, Settings.of([Sampling()], device))
    works: dict[str, Any] = {"noise": drawn}
    for name, chosen in FILTERS.items():
        works[name] = partial(sampler, logits, Settings.of([chosen], device))
    works["choice"] = partial(law.choices, drawn())
    return [Contender(name, partial(column, work, columns)) for name, work in works.items()]


@torch.inference_mode()
def column(work: Any, columns: int) -> Run:
    """A turn whose pace is that of a column."""
    return Run(timed(work).seconds, columns)


def cells_of(row: dict[str, Any]) -> list[str]:
    return [row["part"], *(f"{1e3 * row['seconds'][which]:.3f}" for which in ("median", "low", "high"))]


def bars(rows: list[dict[str, Any]]) -> Image.Image:
    figure = Figure(figsize=(8, 1 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.barh([row["part"] for row in rows], [1e3 * row["seconds"]["median"] for row in rows], color=plots.COLOURS["S"])
    axes.invert_yaxis()
    axes.set(xlabel="ms a column")
    axes.spines[["top", "right"]].set_visible(False)
    return plots.rendered(figure)
