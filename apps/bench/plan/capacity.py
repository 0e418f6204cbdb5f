"""Capacity of one replica by arithmetic, and its latencies by a simulation of continuous batching.

costs = ServiceCosts("eagle2", 8, steps, join_seconds=0.02, publish_seconds=0.01, outside_seconds=0.01, tokens=(64,))
saturated_rate(costs, rows=8)                          # requests a second
simulate(costs, rows=8, rate=3.0).latency.p95          # seconds

The model is the loop of the server's compute thread (`apps/server/engine/group.py`). A request waits until one of
`rows` rows is free. Its prompt is then encoded and prefilled between two steps, and all running rows wait for that. A
step takes t(B) seconds with B rows and commits τ(B) tokens of each. A row that has its tokens leaves, and what is made
of them on the compute thread (an image, a sound) is computed before the next step. Means follow from Little's law:

    B = rate × latency,    latency = n(B) · t(B) + B · s,    n(B) = tokens / τ(B)

where s are a request's seconds on the compute thread outside steps: each of the B requests that are running when one
arrives has such a stall while it runs. Quantiles come from the simulation: arrivals are Poisson, lengths are drawn from
those measured, and everything is determined by a seed.

Replicas are independent: arrivals that are Poisson and are split at random are Poisson at every replica. Not modelled:
failures, refused and repeated requests (the queue is endless), other models on the same replica, requests of more than
one row, different τ of different requests, and costs that grow with a row's length.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

MAX_LOAD = 0.8  # share of its capacity that a replica is planned for; beyond it queues grow without warning
SIMULATED = 3000  # requests of a simulation
WARM_UP = 0.1  # share of them that fills an empty replica and does not count
BISECTIONS = 50


@dataclass(frozen=True)
class StepCost:
    """Mean cost of a decoding step with a number of rows."""

    rows: float  # B, a mean
    nodes: float  # draft nodes of a row, N
    seconds: float  # t(N, B): draft, target pass, verification and the host's work
    tau: float  # τ(N, B): tokens that it commits of a row


@dataclass(frozen=True)
class ServiceCosts:
    """Everything that decides how fast a replica serves requests decoded in one way."""

    method: str
    max_rows: int  # up to which steps were measured
    steps: tuple[StepCost, ...]  # by ascending rows
    join_seconds: float  # of the compute thread when a request joins: its prompt is encoded and prefilled
    publish_seconds: float  # of the compute thread for what is made of a request's tokens
    outside_seconds: float  # of a request beside the compute thread: transport, and encoding of the response
    tokens: tuple[int, ...]  # lengths of answers

    @property
    def mean_tokens(self) -> float:
        """Return the mean length of an answer."""
        return sum(self.tokens) / len(self.tokens)

    @property
    def serial_seconds(self) -> float:
        """Return the seconds of the compute thread that a request takes outside steps."""
        return self.join_seconds + self.publish_seconds

    def step_seconds(self, rows: float) -> float:
        """Return t(B), interpolated between measured numbers of rows."""
        return self._interpolate(rows, [step.seconds for step in self.steps])

    def tau(self, rows: float) -> float:
        """Return τ(B), interpolated between measured numbers of rows."""
        return self._interpolate(rows, [step.tau for step in self.steps])

    def _interpolate(self, rows: float, values: Sequence[float]) -> float:
        return float(np.interp(rows, [step.rows for step in self.steps], values))


def residence_seconds(costs: ServiceCosts, rows: float) -> float:
    """Return the seconds that a request runs where `rows` rows do, without waiting for one."""
    stalls = max(rows, 1) * costs.serial_seconds
    return costs.mean_tokens / costs.tau(rows) * costs.step_seconds(rows) + stalls


def batch_rate(costs: ServiceCosts, rows: float) -> float:
    """Return the requests per second of a replica whose mean number of running rows is `rows`."""
    return rows / residence_seconds(costs, rows)


def saturated_rate(costs: ServiceCosts, rows: int) -> float:
    """Return the requests per second of a replica that always has as many rows as it may have."""
    return batch_rate(costs, rows)


def mean_batch(costs: ServiceCosts, rows: int, rate: float) -> float | None:
    """Return the mean number of running rows at `rate` requests per second; None where that is beyond the capacity.

    Fluctuations are left out, so it is a little low at small numbers, where a step of more rows costs more.
    """
    if rate >= saturated_rate(costs, rows):
        return None
    return _first(lambda batch: batch_rate(costs, batch) >= rate, 0.0, float(rows))


def closed_loop_rate(costs: ServiceCosts, rows: int, clients: int) -> float:
    """Return the requests per second of `clients` that each send the next request when the last one is answered."""

    def sent(batch: float) -> float:
        return batch + batch_rate(costs, batch) * costs.outside_seconds

    if sent(float(rows)) <= clients:
        return saturated_rate(costs, rows)
    return batch_rate(costs, _first(lambda batch: sent(batch) >= clients, 0.0, float(rows)))


def _first(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least number between `low` and `high` from which `holds` is true."""
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class Percentiles:
    """Mean and quantiles of seconds."""

    mean: float
    p50: float
    p95: float

    @staticmethod
    def from_samples(samples: Sequence[float]) -> Percentiles:
        """Return mean, median and 95th percentile of `samples`."""
        values = np.asarray(samples)
        return Percentiles(float(values.mean()), float(np.quantile(values, 0.5)), float(np.quantile(values, 0.95)))


@dataclass(frozen=True)
class SimulatedLoad:
    """Result of a simulated replica."""

    latency: Percentiles  # from arrival to the whole answer
    first: Percentiles  # from arrival to the first tokens
    utilisation: float  # share of time in which the replica computed
    rows: float  # mean number of requests that run, those that are being prefilled or finished included


@dataclass
class RunningRow:
    """Request of a simulation that runs."""

    arrived: float
    missing: float  # tokens that it has not got yet


@dataclass
class SimulatedReplica:
    """State of one replica: the clock of its compute thread, and what runs and waits."""

    costs: ServiceCosts
    rows: int
    now: float = 0.0
    busy: float = 0.0  # seconds of computation so far
    occupied: float = 0.0  # seconds so far, summed over the requests that ran
    running: list[RunningRow] = field(default_factory=list)
    waiting: deque[tuple[float, int]] = field(default_factory=deque)  # arrival and length
    firsts: list[float] = field(default_factory=list)  # seconds to the first tokens, by admission
    latencies: list[float] = field(default_factory=list)  # by completion

    def admit(self) -> list[RunningRow]:
        """Prefill waiting requests, one by one, while there are free rows; return them."""
        joined = []
        while self.waiting and len(self.running) < self.rows:
            arrived, length = self.waiting.popleft()
            self.running.append(RunningRow(arrived, length))
            joined.append(self.running[-1])
            self._compute(self.costs.join_seconds)
        return joined

    def step(self, joined: Sequence[RunningRow], until: float) -> None:
        """Run steps up to the first in which a row ends, or at `until` if then a request could join.

        Args:
            joined: Rows whose first tokens come with the first of these steps.
            until: Time of the next arrival.
        """
        seconds, tau = self.costs.step_seconds(len(self.running)), self.costs.tau(len(self.running))
        # Numbers of steps are whole, and on average as many as a row's tokens over τ: the nearest whole number.
        least = min(row.missing for row in self.running)
        count = max(1, round(least / tau))
        if len(self.running) < self.rows:
            count = max(1, math.ceil(min(count, (until - self.now) / seconds)))
        self._compute(seconds)
        self.firsts += [self.now - row.arrived + self.costs.outside_seconds for row in joined]
        self._compute((count - 1) * seconds)
        for row in self.running:
            row.missing -= count * tau
        ended = [row for row in self.running if row.missing < tau / 2]
        for row in ended:
            self._compute(self.costs.publish_seconds)
            self.running.remove(row)
            self.latencies.append(self.now - row.arrived + self.costs.outside_seconds)

    def _compute(self, seconds: float) -> None:
        self.now += seconds
        self.busy += seconds
        self.occupied += seconds * len(self.running)


def poisson_arrivals(rate: float, tokens: Sequence[int], count: int, seed: int) -> Iterator[tuple[float, int]]:
    """Yield times and lengths of `count` requests; equal seeds give the same ones, stretched in time to the rate."""
    rng = np.random.default_rng(seed)
    times = rng.exponential(size=count).cumsum() / rate
    yield from zip(times.tolist(), rng.choice(np.array(tokens), count).tolist(), strict=True)


def simulate(costs: ServiceCosts, rows: int, rate: float, requests: int = SIMULATED, seed: int = 0) -> SimulatedLoad:
    """Simulate a replica that `rate` requests per second arrive at.

    Args:
        costs (ServiceCosts): What the replica takes.
        rows (int): Most requests that run at a time, at most `costs.max_rows`.
        rate (float): Requests per second, Poisson.
        requests (int): Requests that are simulated.
        seed (int): Determines arrivals and lengths.
    """
    arrivals = deque(poisson_arrivals(rate, costs.tokens, requests, seed))
    replica = SimulatedReplica(costs, rows)
    while arrivals or replica.waiting or replica.running:
        if not replica.running and not replica.waiting:
            replica.now = max(replica.now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= replica.now:
            replica.waiting.append(arrivals.popleft())
        joined = replica.admit()
        if replica.running:
            replica.step(joined, arrivals[0][0] if arrivals else math.inf)
    warm = int(WARM_UP * requests)
    return SimulatedLoad(
        Percentiles.from_samples(replica.latencies[warm:]), Percentiles.from_samples(replica.firsts[warm:]),
        replica.busy / replica.now, replica.occupied / replica.now,
    )  # fmt: skip
