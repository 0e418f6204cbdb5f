"""Numbers of accelerators: what each number of them makes of a rate, and how many it needs.

offered = offered_load(costs, rows=8, rate=40.0, accelerators=8, price=2.5)
replicas_needed(costs, rows=8, rate=40.0, max_p95=2.0)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from polydraft.apps.bench.plan.capacity import (
    MAX_LOAD,
    ServiceCosts,
    SimulatedLoad,
    mean_batch,
    saturated_rate,
    simulate,
)

HOUR = 3600.0
PRICED = 1000  # requests that a cost is for
IDLE_LOAD = 1e-3  # load of a replica at which requests hardly ever meet


@dataclass(frozen=True)
class OfferedLoad:
    """One number of accelerators, each a replica, at one rate."""

    accelerators: int
    capacity: float  # requests per second that all of them serve at most
    load: float  # share of that which the rate is; 1 or more: the queue grows until requests are refused
    batch: float | None  # mean number of running rows by Little's law; None from a load of 1 on, as the next
    simulated: SimulatedLoad | None
    cost: float | None  # of 1,000 requests; None without a price


def offered_load(
    costs: ServiceCosts, rows: int, rate: float, accelerators: int, price: float | None = None
) -> OfferedLoad:
    """Return what `accelerators` replicas make of `rate` requests per second in all.

    Args:
        costs (ServiceCosts): What a replica takes.
        rows (int): Most rows of a replica.
        rate (float): Requests per second, split over the replicas at random.
        accelerators (int): Number of replicas.
        price (float | None): Of an accelerator and hour.
    """
    each, capacity = rate / accelerators, accelerators * saturated_rate(costs, rows)
    batch = mean_batch(costs, rows, each)
    simulated = None if batch is None else simulate(costs, rows, each)
    cost = None if price is None else accelerators * price / HOUR / min(rate, capacity) * PRICED
    return OfferedLoad(accelerators, capacity, rate / capacity, batch, simulated, cost)


def replicas_needed(costs: ServiceCosts, rows: int, rate: float, max_p95: float | None = None) -> int | None:
    """Return the fewest replicas whose load is at most `MAX_LOAD`, and whose p95 of latency is at most `max_p95`.

    Returns:
        int | None: their number; None if a request takes longer than `max_p95` on an idle replica, too.
    """
    fewest = max(1, math.ceil(rate / (MAX_LOAD * saturated_rate(costs, rows))))
    if max_p95 is None or _p95(costs, rows, rate / fewest) <= max_p95:
        return fewest
    most = fewest
    while _p95(costs, rows, rate / most) > max_p95:
        if rate / most < IDLE_LOAD * saturated_rate(costs, 1):
            return None
        most *= 2
    low = most // 2
    while most - low > 1:
        middle = (low + most) // 2
        low, most = (low, middle) if _p95(costs, rows, rate / middle) <= max_p95 else (middle, most)
    return most


def _p95(costs: ServiceCosts, rows: int, rate: float) -> float:
    return simulate(costs, rows, rate).latency.p95
