"""Clients that ask one request after another, and what they saw.

seen = await load(http, [("image", 0), ("image", 1)], clients=2, plain=False, headers={})
seen.rate, seen.latency.median
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import numpy as np

from polydraft.apps.bench.serve.asking import ServerAnswer, ask

Asked = tuple[str, int]  # modality and seed


@dataclass(frozen=True)
class Quantiles:
    """Seconds that half and 99 of 100 took at most."""

    p50: float
    p99: float

    @staticmethod
    def from_samples(values: Iterable[float]) -> Quantiles:
        found = np.array(list(values))
        return Quantiles(*(float(np.quantile(found, share)) if len(found) else float("nan") for share in (0.5, 0.99)))


@dataclass(frozen=True)
class LoadSample:
    """Answers of a load run by modality, and `wall`, its seconds in all."""

    wall: float
    answers: list[tuple[Asked, ServerAnswer]]

    @property
    def rate(self) -> float:
        """Return requests per second."""
        return len(self.answers) / self.wall

    def figures(self, modality: str | None = None) -> dict[str, Any]:
        of = [answer for asked, answer in self.answers if modality in (None, asked[0])]
        return {
            "requests": len(of), "a_second": len(of) / self.wall,
            "first": asdict(Quantiles.from_samples(answer.first for answer in of)),
            "latency": asdict(Quantiles.from_samples(answer.seconds for answer in of)),
            "refused": sum(answer.refused for answer in of),
        }  # fmt: skip


async def load(
    http: httpx.AsyncClient, work: Iterable[Asked], clients: int, plain: bool, headers: dict[str, str],
    seconds: float | None = None,
) -> LoadSample:  # fmt: skip
    """So many clients take from `work`, each the next when it has its answer; seconds: when they take no more."""
    rest, answers, begun = iter(work), [], time.perf_counter()

    async def client() -> None:
        for asked in rest:
            answers.append((asked, await ask(http, *asked, plain, headers)))
            if seconds is not None and time.perf_counter() - begun > seconds:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return LoadSample(time.perf_counter() - begun, answers)


async def poisson_load(
    http: httpx.AsyncClient, work: Iterable[Asked], rate: float, plain: bool, headers: dict[str, str], seed: int = 0
) -> LoadSample:
    """Send requests at random times, whether or not earlier ones are answered.

    Args:
        http: Client of the server.
        work: Requests.
        rate: Requests per second on average.
        plain: Whether they ask for plain decoding.
        headers: Of every request.
        seed: Determines the times.
    """
    rng, answers, begun = np.random.default_rng(seed), [], time.perf_counter()

    async def send(asked: Asked) -> None:
        answers.append((asked, await ask(http, *asked, plain, headers)))

    async with asyncio.TaskGroup() as group:
        due = begun
        for asked in work:
            due += rng.exponential(1 / rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(send(asked))
    return LoadSample(time.perf_counter() - begun, answers)
