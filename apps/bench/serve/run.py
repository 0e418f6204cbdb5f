"""`polydraft bench serve`: a server under load, drafted and plain, at several numbers of clients.

polydraft bench serve --clients 1,2,4,8 --requests 4 -o runs/bench
polydraft bench serve --mixed --clients 8 --seconds 60
polydraft bench serve --url http://127.0.0.1:8000

Without --url a server is started for it, and its memory watched. Requests stream; the first byte is the first picture,
sound or word. `pays` is what drafting makes of a second's requests at the same load: below 1 the server should draft
less, which `polydraft serve --draft-rows` is for.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.bench.serve.asking import PATHS
from polydraft.apps.bench.serve.load import load
from polydraft.apps.bench.serve.mixed import mixed
from polydraft.apps.bench.serve.process import ServerProcess, started
from polydraft.apps.measure import plots, report
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.lists import whole_numbers, words
from polydraft.apps.terminal.terminal import note

HEADERS = ["modality", "clients", "way", "requests/s", "of one", "pays", "first p50", "first p99", "p50", "p99"]
MIXED = ["modality", "requests", "requests/s", "first p50", "first p99", "p50", "p99", "refused"]
FEWEST = 4  # requests that are timed
WAYS = {"drafted": False, "plain": True}
Figures = dict[str, Any]


def run(
    *, url: str | None, api_key: str, clients: str, requests: int, modalities: str, is_mixed: bool, seconds: float,
    options: list[str], output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    counts = whole_numbers(clients, "--clients")
    taken_on = timed_on("cpu", "auto")
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    with nullcontext(ServerProcess(url)) if url else started(options) as server:
        value = asyncio.run(measure_load(server, counts, requests, words(modalities), is_mixed, seconds, headers))
    value |= {"environment": taken_on, "options": options}
    if is_mixed:
        tell_mixed(value, output, json)
    else:
        notes = [
            "times in seconds; of one: over the rate of the fewest clients; pays: the rate drafted over the rate plain"
        ]
        report.tell(
            "serve", value, [(HEADERS, cells(value["loads"]))], notes, lambda: lines(value["loads"]), output, json
        )


async def measure_load(
    server: ServerProcess, counts: list[int], requests: int, modalities: list[str], is_mixed: bool, seconds: float,
    headers: dict[str, str],
) -> Figures:  # fmt: skip
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as http:
        if is_mixed:
            return await mixed(server, http, counts[-1], seconds, headers)
        loads = []
        for modality in modalities:
            for way, plain in WAYS.items():
                await load(http, [(modality, 0)], 1, plain, headers)  # first uses
                for count in counts:
                    note(f"{modality}, {way}, {count} clients")
                    work = [(modality, seed) for seed in range(max(FEWEST, count * requests))]
                    seen = await load(http, work, count, plain, headers)
                    loads.append({"modality": modality, "clients": count, "way": way} | seen.figures())
        return {"loads": loads}


def cells(loads: list[Figures]) -> list[list[str]]:
    rates = {(each["modality"], each["clients"], each["way"]): each["a_second"] for each in loads}
    fewest = min(each["clients"] for each in loads)
    made = []
    for each in loads:
        modality, clients, way = each["modality"], each["clients"], each["way"]
        pays = rates[modality, clients, "drafted"] / rates[modality, clients, "plain"] if way == "drafted" else None
        made.append(
            [
                modality, str(clients), way, f"{each['a_second']:.2f}",
                f"{each['a_second'] / rates[modality, fewest, way]:.2f}", f"{pays:.2f}" if pays else "",
                *times(each),
            ]
        )  # fmt: skip
    return made


def times(figures: Figures) -> list[str]:
    return [f"{figures[what][share]:.2f}" for what in ("first", "latency") for share in ("p50", "p99")]


def lines(loads: list[Figures]) -> Image.Image:
    """Plot requests per second over clients, a panel per modality."""
    modalities = [name for name in PATHS if any(each["modality"] == name for each in loads)]
    figure = Figure(figsize=(4 * len(modalities), 3), layout="constrained")
    for axes, modality in zip(figure.subplots(1, len(modalities), squeeze=False)[0], modalities, strict=True):
        for way, colour in zip(WAYS, (plots.COLOURS["S"], "#8a8f98"), strict=True):
            of = [each for each in loads if each["modality"] == modality and each["way"] == way]
            axes.plot(
                [each["clients"] for each in of], [each["a_second"] for each in of], "o-", color=colour, label=way
            )
        axes.set(title=modality, xlabel="clients", ylabel="requests a second", ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    return plots.rendered(figure)


def tell_mixed(value: Figures, output: Path | None, json: bool) -> None:
    """Print and save; a wrong answer ends the command."""
    rows = [
        [name, str(of["requests"]), f"{of['a_second']:.2f}", *times(of), str(of["refused"])]
        for name, of in value["modalities"].items()
    ]
    memory = value["memory"]
    notes = [
        f"{value['requests']} answers in {value['seconds']:.1f} s; {len(value['wrong'])} are not their seeds' alone",
        f"/health: p50 {1e3 * value['health']['p50']:.0f} ms, p99 {1e3 * value['health']['p99']:.0f} ms",
    ]
    if memory:
        third = max(1, len(memory) // 3)
        notes.append(
            f"memory: {memory[0]:.0f} MB at first, at most {max(memory[:third]):.0f} in the first third and "
            f"{max(memory[-third:]):.0f} in the last"
        )
    report.tell("serve-mixed", value, [(MIXED, rows)], notes, lambda: memory_line(memory), output, json)
    if value["wrong"]:
        raise SystemExit(1)


def memory_line(memory: list[float]) -> Image.Image:
    figure = Figure(figsize=(6, 2.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(memory, color=plots.COLOURS["S"])
    axes.set(ylabel="MB", xlabel="looks", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    return plots.rendered(figure)
