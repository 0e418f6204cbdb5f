"""Speed of speech methods against plain decoding and transformers' `generate`, and time to first audio.

rows, notes = measure(pipe, ["ar", "vadusa"], requests, repeats=3, options={}, peers=True)
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from polydraft.apps.data.user_requests import BenchUtterance
from polydraft.apps.measure import table
from polydraft.apps.measure.peers.generate import attempt, generate, probe, untouched
from polydraft.apps.measure.timing import Contender, Run, Spread, take_turns
from polydraft.apps.terminal.terminal import note
from polydraft.core.stats import DecodeStats
from polydraft.modalities.speech.pipeline import SpeechPipeline

HEADERS = [
    "method", "guarantee", "same", "S", "baseline", "τ", "S/τ", "× hf", "RTF decode", "RTF", "first ms",
    "draft/score/verify/rest %",
]  # fmt: skip


@dataclass(frozen=True)
class SpokenRun(Run):
    """One turn of speaking. wall, first, lasting: seconds, of everything, to the first sound, of speech."""

    wall: float = 0.0
    first: list[float] = field(default_factory=list)
    lasting: float = 0.0


def measure(
    pipe: SpeechPipeline, names: list[str], requests: list[BenchUtterance], repeats: int, options: dict[str, Any],
    peers: bool,
) -> tuple[list[dict[str, Any]], list[str]]:  # fmt: skip
    """Return a row for every method and for transformers' `generate`, and why that is left out."""
    contenders, notes = [Contender(name, partial(say, pipe, name, requests, options)) for name in names], []
    if peers:
        streams = [ask(pipe, table.PLAIN, request, options) for request in requests]
        prompts = [prompt for stream in streams for prompt in stream.prompts]
        work = partial(generate, pipe, untouched(pipe))
        if attempt(table.PEER, partial(work, probe(prompts[:1]))) is None:
            notes.append(f"{table.PEER} was not timed: it fails on {pipe.card.name}")
        else:
            contenders.append(Contender(table.PEER, partial(work, prompts)))
    runs = take_turns(contenders, repeats, lambda name: note(f"timing {name}"))
    return [row_of(row, runs[row.method]) for row in table.ResultBlock.from_runs("", runs).rows], notes


def ask(pipe: SpeechPipeline, name: str, request: BenchUtterance, options: dict[str, Any]) -> Any:
    """Return the stream of a request with a method."""
    return pipe.stream(request.text, method=name, **request.options(), **options)


def say(pipe: SpeechPipeline, name: str, requests: list[BenchUtterance], options: dict[str, Any]) -> SpokenRun:
    """Synthesise all texts one by one, as a listener receives them."""
    wall = lasting = 0.0
    first: list[float] = []
    results = []
    for request in requests:
        begun = time.perf_counter()
        stream = ask(pipe, name, request, options)
        next(stream)
        first.append(time.perf_counter() - begun)
        for _ in stream:
            pass
        results.append(stream.result())
        wall += time.perf_counter() - begun
        lasting += results[-1].seconds
    stats = DecodeStats.sum_runs([result.stats for result in results])
    outputs = [result.tokens for result in results]
    return SpokenRun(stats.decode_seconds, stats.tokens, outputs, stats, stats.target_passes, wall, first, lasting)


def row_of(row: table.ResultRow, runs: list[Run]) -> dict[str, Any]:
    spoken_runs = [run for run in runs if isinstance(run, SpokenRun)]
    value = row.to_dict() | {"S": row.speedup.median, "same": row.identical}
    if spoken_runs:
        value |= {
            "rtf_decode": Spread.from_samples(run.seconds / run.lasting for run in spoken_runs).median,
            "rtf": Spread.from_samples(run.wall / run.lasting for run in spoken_runs).median,
            "first": float(np.median([wait for run in spoken_runs for wait in run.first])),
        }  # fmt: skip
    return value


def cells(row: dict[str, Any]) -> list[str]:
    same = {None: "", True: "yes", False: "no"}[row["same"]]
    peer = row["over_peer"] and row["over_peer"]["median"]
    figures = map(table.figure, (row["tau"], row["efficiency"], peer, row.get("rtf_decode"), row.get("rtf")))
    found = table.figure(row["S"])
    first = f"{1000 * row['first']:.0f}" if "first" in row else ""
    spent = "/".join(f"{100 * row['split'][phase]:.0f}" for phase in table.PHASES if row["split"])
    return [row["method"], row["guarantee"], same, found, row["baseline"], *figures, first, spent]
