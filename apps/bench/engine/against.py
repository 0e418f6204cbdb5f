"""`polydraft bench against`: this engine beside another checkout's, on the same weights, in turns.

git worktree add ../before COMMIT
polydraft bench against ../before --model ../before/assets/models/tiny-image --methods "ar,jacobi,eagle2"

Two processes load the model and decode the same prompts by turns, each with the machine to itself. What another commit
draws may be something else, so that times are a token's.
"""

from __future__ import annotations

import json as json_format
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.data.captions import held_out
from polydraft.apps.data.sentences.sentences import everyday_sentences
from polydraft.apps.measure import plots, report
from polydraft.apps.measure.decoding import asked_for
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.table import PLAIN
from polydraft.apps.measure.timing import Contender, Run, pace, speedup, take_turns
from polydraft.apps.terminal.terminal import note
from polydraft.core.errors import DataUnavailable, InvalidArgument
from polydraft.modalities.loading import load
from polydraft.modalities.world.scene import place_objects

WORKER = Path(__file__).with_name("worker.py")
HERE = Path(__file__).resolve().parents[3]
NAMES = ("before", "after")
QUESTIONS = ("What is in the picture?", "Describe the picture.")
HEADERS = ["method", "before ms", "after ms", "times as fast", "before τ", "after τ", "before S", "after S"]


def run(
    *, checkout: Path, model: str, methods: str, prompts: int, repeats: int, guidance_scale: float | None,
    output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    check_checkout(checkout)
    pipe = load(model)
    names = asked_for(methods, pipe)
    settings = {} if guidance_scale is None else {"guidance_scale": guidance_scale}
    if settings and pipe.card.modality != "image":
        raise InvalidArgument("--guidance-scale is for models of images; leave it out.")
    if pipe.card.modality == "vlm":
        settings = {"temperature": 0.0}
    with ExitStack() as stack:
        asked = prompts_of(pipe.card.modality, prompts, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        engines = {
            name: stack.enter_context(start_engine(folder.resolve(), model))
            for name, folder in zip(NAMES, (checkout, HERE), strict=True)
        }
        contenders = [
            Contender(f"{method}, {name}", partial(engine.decode, method, asked, settings))
            for method in names
            for name, engine in engines.items()
        ]
        runs = take_turns(contenders, repeats, lambda name: note(f"timing {name}"))
    rows = [row_of(method, runs) for method in names]
    value = {
        "model": pipe.card.name, "checkout": str(checkout), "prompts": prompts, "repeats": repeats, "rows": rows,
        "settings": settings, "environment": timed_on(pipe.device, pipe.dtype),
    }  # fmt: skip
    sheet = (HEADERS, [cells_of(row) for row in rows])
    caption = "ms a token; S over plain decoding of the same engine"
    report.tell("against", value, [sheet], [caption], lambda: bars(rows), output, json)


def check_checkout(folder: Path) -> None:
    """Raise DataUnavailable unless an engine can be started from `folder`."""
    if not (folder / "src" / "polydraft").is_dir():
        raise DataUnavailable(f"{folder} is no checkout of polydraft; make one with `git worktree add`.")


def prompts_of(modality: str, count: int, folder: Path) -> list[list[str]]:
    """Return pipeline inputs: captions, sentences, or images with questions; no model was trained on them."""
    if modality == "speech":
        return [[sentence] for sentence in everyday_sentences()[:count]]
    captions, compositions = held_out(count)
    if modality == "image":
        return [[caption] for caption in captions]
    asked = []
    for number, composition in enumerate(compositions):
        picture = folder / f"{number}.png"
        Image.fromarray(place_objects(composition, np.random.default_rng(number)).render()).save(picture)
        asked.append([str(picture), QUESTIONS[number % len(QUESTIONS)]])
    return asked


@dataclass
class EngineProcess:
    """A checkout at work, which is asked and tells in lines."""

    name: str
    asking: IO[str]
    telling: IO[str]

    def decode(self, method: str, prompts: list[list[str]], settings: dict[str, Any]) -> Run:
        self.asking.write(json_format.dumps([method, prompts, settings]) + "\n")
        self.asking.flush()
        seconds, tokens, passes = self.read_line()
        return Run(seconds, tokens, passes=passes)

    def read_line(self) -> Any:
        line = self.telling.readline()
        if not line:
            raise DataUnavailable(f"the engine in {self.name} has ended; its own words stand above.")
        return json_format.loads(line)


@contextmanager
def start_engine(checkout: Path, model: str) -> Iterator[EngineProcess]:
    """Start the engine of `checkout` and end it with the block."""
    given = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, "-P", str(WORKER), model]
    pipe = subprocess.PIPE
    # in a session of its own, so that Ctrl-C reaches this process alone, which ends it
    with subprocess.Popen(command, env=given, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        assert process.stdin is not None and process.stdout is not None
        engine = EngineProcess(str(checkout), process.stdin, process.stdout)
        try:
            engine.read_line()
            yield engine
        finally:
            process.kill()


def row_of(method: str, runs: dict[str, list[Run]]) -> dict[str, Any]:
    row: dict[str, Any] = {"method": method}
    for name in NAMES:
        method_runs = runs[f"{method}, {name}"]
        row[name] = {
            "seconds_a_token": asdict(pace(method_runs)),
            "tau": sum(run.tokens for run in method_runs) / sum(run.passes for run in method_runs),
            "speedup": asdict(speedup(runs[f"{PLAIN}, {name}"], method_runs)),
        }
    row["times_as_fast"] = asdict(speedup(*(runs[f"{method}, {name}"] for name in NAMES)))
    return row


def cells_of(row: dict[str, Any]) -> list[str]:
    both = [row[name] for name in NAMES]
    return [
        row["method"], *(f"{1e3 * one['seconds_a_token']['median']:.2f}" for one in both),
        f"{row['times_as_fast']['median']:.2f}", *(f"{one['tau']:.2f}" for one in both),
        *(f"{one['speedup']['median']:.2f}" for one in both),
    ]  # fmt: skip


def bars(rows: list[dict[str, Any]]) -> Image.Image:
    """Plot ms per token of both engines, a pair of bars per method."""
    figure = Figure(figsize=(8, 1 + 0.7 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        for name, colour in zip(NAMES, ("#8a8f98", plots.COLOURS["S"]), strict=True):
            axes.barh([f"{row['method']}, {name}"], [1e3 * row[name]["seconds_a_token"]["median"]], color=colour)
    axes.invert_yaxis()
    axes.set(xlabel="ms a token")
    axes.spines[["top", "right"]].set_visible(False)
    return plots.rendered(figure)
