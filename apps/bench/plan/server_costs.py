"""Costs of a served model, from the counters of a server under load.

with started(["--model", "tiny-vlm", "--rows", "8"]) as server:
    costs = asyncio.run(measure_way(http, "tiny-vlm", "vlm", "drafted", client_counts(8), rows=8, seconds=12.0))

A number of clients ask one request after another, so the number of running rows stays where it is; the server counts
its passes and where its compute thread's time goes (`polydraft:steps`, `polydraft:compute_seconds`). What a server does
beside passes is so measured where it happens, with its threads in each other's way: prompts, prefill, pixels and sound,
progress, HTTP. The requests are those of `polydraft bench serve`.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx

from polydraft.apps.bench.plan.capacity import ServiceCosts, StepCost
from polydraft.apps.bench.serve.asking import ask
from polydraft.apps.bench.serve.load import load
from polydraft.apps.bench.serve.metrics import read_metrics
from polydraft.apps.bench.serve.run import WAYS
from polydraft.apps.terminal.terminal import note

LENGTHS = 12  # requests whose answers' lengths are counted one by one
SATURATION = 1.5  # clients per row at which all rows are always running
PATIENCE = 600  # seconds for an answer
WINDOWS = 3  # parts of a load, of which the median counts: pass times are measured now and then, and others run as well
MAX_LEARNING = 5.0  # seconds
WARM_UP = 0.3  # share of a load's seconds before it, in which the number of rows settles


@dataclass(frozen=True)
class ClientLoad:
    """A number of clients, what they saw, and by how much the server's counters grew."""

    clients: int
    latency: float  # mean seconds
    grown: Counter[str]

    @property
    def requests(self) -> float:
        """Return the number of requests that the server finished."""
        return self.grown["requests_total{done}"]

    def seconds(self, part: str) -> float:
        """Return the seconds of the compute thread per request."""
        return self.grown[f"compute_seconds_total{{{part}}}"] / self.requests

    @property
    def outside_seconds(self) -> float:
        """Return the seconds of a request that its client saw and the compute thread did not work."""
        return self.latency - sum(map(self.seconds, ("join", "step", "publish")))

    def step_cost(self) -> StepCost:
        """Return the mean cost of the steps."""
        steps, row_steps = self.grown["steps_total"], self.grown["target_passes_total"]
        return StepCost(
            row_steps / steps, self.grown["spec_decode_num_draft_tokens_total"] / row_steps,
            self.grown["compute_seconds_total{step}"] / steps, self.grown["generation_tokens_total"] / row_steps,
        )  # fmt: skip


def client_counts(rows: int) -> list[int]:
    """Return 1, 2, 4, … clients below `rows`, and as many as keep all rows running."""
    powers = [2**power for power in range(rows.bit_length()) if power == 0 or 2**power < rows]
    return [*powers, max(2, round(SATURATION * rows))]


async def measure_way(
    http: httpx.AsyncClient, model: str, modality: str, way: str, counts: Sequence[int], rows: int, seconds: float
) -> ServiceCosts:
    """Return the costs of requests that are decoded in one way, from a load of every number of clients.

    Args:
        http: Client of the server.
        model: Model that it serves.
        modality: "image", "speech" or "vlm".
        way: One of `WAYS`.
        counts: Numbers of clients.
        rows: Rows that the server decodes together.
        seconds: Duration of every load.
    """
    seeds = itertools.count()
    lengths = [await answer_length(http, model, modality, next(seeds), WAYS[way]) for _ in range(LENGTHS)]
    for clients in counts:  # drafts are sized by what passes took: a new server is slower
        note(f"{model}, {way}, {clients} clients, to learn")
        await load(http, requests_of(modality, seeds), clients, WAYS[way], {}, min(seconds, MAX_LEARNING))
    loads = []
    for clients in counts:
        note(f"{model}, {way}, {clients} clients")
        loads.append(await measure_load(http, model, modality, seeds, clients, WAYS[way], seconds))
    # A request costs much the same beside any number of others; the median forgets a load that was disturbed.
    join, publish = (statistics.median(each.seconds(part) for each in loads) for part in ("join", "publish"))
    steps = {step.rows: step for step in (each.step_cost() for each in loads)}
    ascending = tuple(steps[count] for count in sorted(steps))
    return ServiceCosts(way, rows, ascending, join, publish, max(0.0, loads[0].outside_seconds), tuple(lengths))


async def answer_length(http: httpx.AsyncClient, model: str, modality: str, seed: int, plain: bool) -> int:
    """Return the number of tokens of the answer to a request that nothing else runs beside."""
    before = await read_metrics(http, model)
    await ask(http, modality, seed, plain, {})
    return round((await read_metrics(http, model) - before)["generation_tokens_total"])


async def measure_load(
    http: httpx.AsyncClient, model: str, modality: str, seeds: Iterator[int], clients: int, plain: bool, seconds: float
) -> ClientLoad:
    """Let clients ask for some seconds after a warm-up, and return the window of median latency."""
    await load(http, requests_of(modality, seeds), clients, plain, {}, WARM_UP * seconds)
    windows = []
    for _ in range(WINDOWS):
        before = await read_metrics(http, model)
        seen = await load(http, requests_of(modality, seeds), clients, plain, {}, seconds / WINDOWS)
        grown = await read_metrics(http, model) - before
        windows.append(ClientLoad(clients, statistics.mean(answer.seconds for _, answer in seen.answers), grown))
    return sorted(windows, key=lambda window: window.latency)[WINDOWS // 2]


def requests_of(modality: str, seeds: Iterator[int]) -> Iterator[tuple[str, int]]:
    """Yield endless requests of a modality."""
    return ((modality, seed) for seed in seeds)
