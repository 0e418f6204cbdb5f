"""`polydraft bench depth`: acceptance by depth of published verifiers and of trees with shared noise.

polydraft bench depth --prompts 8 --temperature 1 -o runs/bench

Every method generates the same captions with the same seeds, in turns with plain decoding. Acceptance at depth d is the
share of target passes that accepted d drafted tokens or more; τ is their sum plus one.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.data.captions import held_out, settings, world_of
from polydraft.apps.measure import plots, report, table
from polydraft.apps.measure.decoding import draw, split
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.timing import Contender, Run, speedup, take_turns
from polydraft.apps.terminal.terminal import note
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.stats import DecodeStats
from polydraft.modalities.loading import load

SHOWN = 8  # depths in the table
DEFAULT_METHODS = (
    "draft", "draft+sps", "draft+block", "eagle", "eagle+recursive", "eagle+target-only", "eagle2",
    "eagle2+target-only", "eagle2-published",
)  # fmt: skip


def run(
    *, prompts: int, repeats: int, methods: str | None, model: str, temperature: float | None,
    min_p: float | None, guidance_scale: float | None, world: str | None, output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    pipe: Any = load(model)
    names = split(methods) or [name for name in DEFAULT_METHODS if name.split("+")[0] in pipe.available_methods()]
    if not names:
        raise UnsupportedMethod(
            f"{pipe.card.name} has no drafter to compare verifiers on; train one with `polydraft train drafter` "
            "or name --methods."
        )
    for name in names:
        pipe.check_method(name)
    sampling = settings(pipe, temperature, guidance_scale, min_p=min_p)
    world_of_captions = world_of(pipe, world)
    image_prompts = pipe.build_prompts(held_out(prompts, world_of_captions)[0], sampling=sampling)
    taken_on = timed_on(pipe.device, pipe.dtype)
    all_methods = dict.fromkeys([table.PLAIN, *names])
    contenders = [Contender(name, partial(draw, pipe, name, image_prompts, 1)) for name in all_methods]
    runs = take_turns(contenders, repeats, lambda name: note(f"timing {name}"))
    rows = [row_of(name, runs) for name in names]
    value = {
        "model": pipe.card.name, "world": world_of_captions.name, "prompts": prompts, "repeats": repeats,
        "sampling": asdict(sampling), "rows": rows, "environment": taken_on,
    }  # fmt: skip
    headers = ["method", "guarantee", "S", "τ", *map(str, range(1, SHOWN + 1))]
    sheet = (headers, [cells_of(row) for row in rows])
    report.tell("depth", value, [sheet], [], lambda: plot_acceptance(rows), output, json)


def row_of(name: str, runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Return the results of a method over all rounds."""
    stats = DecodeStats.sum_runs([turn.stats for turn in runs[name] if turn.stats is not None])
    return {
        "method": name, "guarantee": stats.guarantee, "S": speedup(runs[table.PLAIN], runs[name]).median,
        "tau": stats.mean_accepted_length, "acceptance": stats.accepted_per_position,
    }  # fmt: skip


def cells_of(row: dict[str, Any]) -> list[str]:
    acceptance = [f"{share:.2f}" for share in row["acceptance"][:SHOWN]]
    return [
        row["method"], row["guarantee"], f"{row['S']:.2f}", f"{row['tau']:.2f}",
        *acceptance, *[""] * (SHOWN - len(acceptance)),
    ]  # fmt: skip


def plot_acceptance(rows: list[dict[str, Any]]) -> Image.Image:
    """Plot acceptance by depth; identical methods have solid lines, others dashed ones."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        depths = range(1, len(row["acceptance"]) + 1)
        style = "-" if row["guarantee"] == "identical" else "--"
        axes.plot(depths, row["acceptance"], style, marker=".", label=f"{row['method']}, τ {row['tau']:.2f}")
    axes.set(xlabel="depth", ylabel="share of passes that accept as deep", ylim=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return plots.rendered(figure)
