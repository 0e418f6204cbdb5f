"""Compare a plan with a live server: clients that wait for answers, and requests that arrive at random.

checks = await check_way(http, "tiny-vlm", "vlm", "drafted", measured.ways["drafted"], rows=8, seconds=12.0)
checks[0].ratio
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from typing import Any

import httpx

from polydraft.apps.bench.plan.capacity import ServiceCosts, closed_loop_rate, saturated_rate, simulate
from polydraft.apps.bench.plan.server_costs import measure_load, requests_of
from polydraft.apps.bench.serve.load import poisson_load
from polydraft.apps.bench.serve.run import WAYS
from polydraft.apps.terminal.terminal import note

OPEN_LOAD = 0.5  # share of the capacity at which requests arrive
FIRST_SEED = 100_000  # of requests that nothing was measured with
MIN_ARRIVALS = 30


@dataclass(frozen=True)
class LoadCheck:
    """One figure as predicted and as measured."""

    way: str
    load: str  # "3 clients", or "open, 4.2/s"
    figure: str  # "requests/s", "mean s", …
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Return the prediction over the measurement."""
        return self.predicted / self.measured

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and the ratio."""
        return vars(self) | {"ratio": self.ratio}


def checked_clients(rows: int) -> list[int]:
    """Return numbers of clients between those that costs were measured with, and one beyond all rows."""
    return sorted({max(1, round(rows * share)) for share in (0.375, 0.75, 2)})


async def check_way(
    http: httpx.AsyncClient, model: str, modality: str, way: str, costs: ServiceCosts, rows: int, seconds: float
) -> list[LoadCheck]:
    """Measure a running server beside what was predicted for requests that are decoded in one way.

    Args:
        http: Client of the server.
        model: Model that it serves.
        modality: "image", "speech" or "vlm".
        way: One of `WAYS`.
        costs: Costs of the requests.
        rows: Rows that the server decodes together.
        seconds: Duration of every load.
    """
    checks, seeds, plain = [], itertools.count(FIRST_SEED), WAYS[way]
    for clients in checked_clients(rows):
        note(f"check: {way}, {clients} clients")
        latency = (await measure_load(http, model, modality, seeds, clients, plain, seconds)).latency
        rate = closed_loop_rate(costs, rows, clients)
        checks += [
            LoadCheck(way, f"{clients} clients", "requests/s", rate, clients / latency),
            LoadCheck(way, f"{clients} clients", "mean s", clients / rate, latency),
        ]
    rate = OPEN_LOAD * saturated_rate(costs, rows)
    note(f"check: {way}, {rate:.2f} requests a second")
    count = max(MIN_ARRIVALS, round(2 * rate * seconds))
    seen = await poisson_load(http, itertools.islice(requests_of(modality, seeds), count), rate, plain, {})
    figures, simulated = seen.figures(), simulate(costs, rows, rate, requests=count)  # the same times of arrival
    mean = statistics.mean(answer.seconds for _, answer in seen.answers)
    name = f"open, {rate:.2f}/s"
    return [
        *checks,
        LoadCheck(way, name, "mean s", simulated.latency.mean, mean),
        LoadCheck(way, name, "p50 s", simulated.latency.p50, figures["latency"]["p50"]),
    ]
