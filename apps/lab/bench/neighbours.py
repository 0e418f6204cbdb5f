"""`polydraft bench neighbours`: decoding speed alone and next to other processes that keep cores busy.

polydraft bench neighbours --model tiny-image --methods "ar,local" --loops 0,1,2
polydraft bench neighbours --model tiny-vlm --checkout ../before      # another commit's engine in the same turns

An engine decodes in a process of its own, next to a number of busy loops. Loops start and stop with the turns, so that
times include the engine's adaptation. With as many loops as cores a fair share of the machine is half of it: twice the
time.
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

from polydraft.apps.bench.engine.against import HERE, EngineProcess, check_checkout, prompts_of, start_engine
from polydraft.apps.measure import plots, report
from polydraft.apps.measure.decoding import asked_for
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.lists import whole_numbers
from polydraft.apps.measure.timing import Contender, Run, Spread, pace, take_turns
from polydraft.apps.terminal.terminal import note
from polydraft.modalities.loading import load

BUSY_LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends with its parent
COLOURS = ("#8a8f98", "#2d6ec8", "#3cb478", "#d98a29")


@dataclass(frozen=True)
class Case:
    """Engine and method next to a number of busy loops."""

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
        prompts_of_turn = prompts_of(
            pipe.card.modality, prompts, Path(stack.enter_context(tempfile.TemporaryDirectory()))
        )
        folders = {"before": checkout.resolve()} if checkout is not None else {}
        folders["after" if folders else "this engine"] = HERE
        engines = {name: stack.enter_context(start_engine(folder, model)) for name, folder in folders.items()}
        cases = [Case(engine, method, count) for method in names for engine in engines for count in counts]
        contenders = [
            Contender(case.name, lambda case=case: decode_beside(engines[case.engine], case, prompts_of_turn, settings))  # type: ignore[misc]
            for case in cases
        ]
        runs = take_turns(contenders, repeats, lambda name: note(f"timing {name}"))
    rows = [row_of(case, runs) for case in cases]
    value = {
        "model": pipe.card.name, "prompts": prompts, "repeats": repeats, "checkout": str(checkout or ""),
        "rows": rows, "settings": settings, "environment": taken_on,
    }  # fmt: skip
    headers = ["method", "engine", "busy loops", "ms a token", "from", "to", "times the time alone"]
    report.tell(
        "neighbours", value, [(headers, [cells_of(row) for row in rows])], [], lambda: plot_bars(rows), output, json
    )


def decode_beside(engine: EngineProcess, case: Case, prompts: list[list[str]], settings: dict[str, Any]) -> Run:
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
    """Return a case's seconds per token, and their factor over the same engine and method alone."""
    alone_runs, case_runs = runs[Case(case.engine, case.method, 0).name], runs[case.name]
    factor = Spread.from_samples(beside.pace / quiet.pace for quiet, beside in zip(alone_runs, case_runs, strict=True))
    return asdict(case) | {"seconds_a_token": asdict(pace(case_runs)), "factor": asdict(factor)}


def cells_of(row: dict[str, Any]) -> list[str]:
    """Return the row as it is printed."""
    seconds = (f"{1e3 * row['seconds_a_token'][name]:.2f}" for name in ("median", "low", "high"))
    return [row["method"], row["engine"], str(row["loops"]), *seconds, f"{row['factor']['median']:.2f}"]


def plot_bars(rows: list[dict[str, Any]]) -> Image.Image:
    """Plot ms per token, a bar per case, by engine and method."""
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
