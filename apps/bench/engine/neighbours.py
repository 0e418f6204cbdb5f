"""`polydraft bench neighbours`: decoding alone, and beside other processes that keep cores busy.

polydraft bench neighbours --model tiny-image --methods "ar,local" --loops 0,1,2
polydraft bench neighbours --model tiny-vlm --checkout ../before      # another commit's engine in the same turns

An engine decodes in a process of its own, while so many loops that do nothing run beside it. Loops come and go with the
turns, so that times hold what the engine takes to notice. With as many loops as cores a fair share of the machine is
half of it: twice the time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.bench.engine.against import HERE, Engine, check_checkout, prompts_of, started
from polydraft.apps.bench.measure import plots, report
from polydraft.apps.bench.measure.decoding import asked_for
from polydraft.apps.bench.measure.environment import timed_on
from polydraft.apps.bench.measure.lists import whole_numbers
from polydraft.apps.bench.measure.timing import Contender, Run, Spread, pace, take_turns
from polydraft.apps.commands.shared.terminal import note
from polydraft.modalities.loading import load

BUSY_LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"  # not longer than who started it
COLOURS = ("#8a8f98", "#2d6ec8", "#3cb478", "#d98a29")


@dataclass(frozen=True)
class Case:
    """One engine and method beside so many busy loops."""

    engine: str
    method: str
    loops: int

    @property
    def name(self) -> str:
        return f"{self.method}, {self.engine}, {self.loops} busy loops"


def run(
    *, model: str, methods: str, loops: str, prompts: int, repeats: int, checkout: Path | None, output: Path | None,
    json: bool,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    if checkout is not None:
        check_checkout(checkout)
    counts = sorted({0, *whole_numbers(loops, "--loops", least=0)})
    pipe = load(model)
    names = asked_for(pipe.default_method.name if methods == "best" else methods, pipe)
    settings = {"temperature": 0.0} if pipe.card.modality == "vlm" else {}
    taken_on = timed_on(pipe.device, pipe.dtype)
    with ExitStack() as stack:
        asked = prompts_of(pipe.card.modality, prompts, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        folders = {"before": checkout.resolve()} if checkout is not None else {}
        folders["after" if folders else "this engine"] = HERE
        engines = {name: stack.enter_context(started(folder, model)) for name, folder in folders.items()}
        cases = [Case(engine, method, count) for method in names for engine in engines for count in counts]
        contenders = [
            Contender(case.name, lambda case=case: decode_beside(engines[case.engine], case, asked, settings))  # type: ignore[misc]
            for case in cases
        ]
        runs = take_turns(contenders, repeats, lambda name: note(f"timing {name}"))
    rows = [row_of(case, runs) for case in cases]
    value = {
        "model": pipe.card.name, "prompts": prompts, "repeats": repeats, "checkout": str(checkout or ""),
        "rows": rows, "settings": settings, "environment": taken_on,
    }  # fmt: skip
    headers = ["method", "engine", "busy loops", "ms a token", "from", "to", "times the time alone"]
    report.tell("neighbours", value, [(headers, [cells_of(row) for row in rows])], [], lambda: bars(rows), output, json)


def decode_beside(engine: Engine, case: Case, prompts: list[list[str]], settings: dict[str, Any]) -> Run:
    """Decode once while the case's busy loops run."""
    with busy_loops(case.loops):
        return engine.decode(case.method, prompts, settings)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep `count` processes busy inside the block."""
    with ExitStack() as stack:
        for _ in range(count):
            loop = subprocess.Popen([sys.executable, "-c", BUSY_LOOP])
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        yield


def row_of(case: Case, runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Return a case's seconds a token, and how many times those of the same engine and method alone."""
    alone, own = runs[Case(case.engine, case.method, 0).name], runs[case.name]
    factor = Spread.of(beside.pace / quiet.pace for quiet, beside in zip(alone, own, strict=True))
    return asdict(case) | {"seconds_a_token": asdict(pace(own)), "factor": asdict(factor)}


def cells_of(row: dict[str, Any]) -> list[str]:
    """Return the row as it is printed."""
    seconds = (f"{1e3 * row['seconds_a_token'][name]:.2f}" for name in ("median", "low", "high"))
    return [row["method"], row["engine"], str(row["loops"]), *seconds, f"{row['factor']['median']:.2f}"]


def bars(rows: list[dict[str, Any]]) -> Image.Image:
    """Plot ms a token, a bar a case, by engine and method."""
    figure = Figure(figsize=(8, 1 + 0.35 * len(rows)), layout="constrained")
    axes = figure.subplots()
    counts = sorted({row["loops"] for row in rows})
    for row in rows:
        label = f"{row['method']}, {row['engine']}, {row['loops']} loops"
        colour = COLOURS[counts.index(row["loops"]) % len(COLOURS)]
        axes.barh([label], [1e3 * row["seconds_a_token"]["median"]], color=colour)
    axes.invert_yaxis()
    axes.set(xlabel="ms a token")
    axes.spines[["top", "right"]].set_visible(False)
    return plots.rendered(figure)
