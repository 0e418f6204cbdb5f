"""Work spread over processes of a Ray cluster; an item whose process died is repeated once.

    crew = Crew(Worker, (argument,), size=4, cpus=1.0)      # Worker: a class whose `do(item)` returns a result
    for item, result in crew.run(items):                    # in order of completion; Lost if two processes died

Actors instead of Ray Data: every result is passed on, and written, as soon as it exists, and an item that kills its
process is given up after the second one, while a data set would retry for ever or stop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

log: logging.Logger = logging.getLogger("polydraft.ray")
T = TypeVar("T")
TRIES = 2


@dataclass(frozen=True)
class Lost:
    """Reason why an item has no result."""

    message: str = "the process died on it, and so did the next one; look at the logs of Ray."


@dataclass(frozen=True)
class Crew:
    """Pool of `size` processes with `cpus` and `gpus` each; one item at a time per process, so torch has its cores."""

    worker: type
    arguments: tuple[Any, ...]
    size: int
    cpus: float = 1.0
    gpus: float = 0.0

    def run(self, items: Iterable[T]) -> Iterator[tuple[T, Any]]:
        """Yield every item with its result in order of completion; an error of `do` is raised here."""
        import ray
        from ray.exceptions import RayActorError

        waiting: deque[tuple[T, int]] = deque((item, 1) for item in items)
        idle = [self.hire() for _ in range(min(self.size, len(waiting)))]
        busy: dict[Any, tuple[Any, T, int]] = {}
        try:
            while waiting or busy:
                while waiting and idle:
                    item, count = waiting.popleft()
                    actor = idle.pop()
                    busy[actor.do.remote(item)] = actor, item, count
                (done, *_), _ = ray.wait(list(busy), num_returns=1)
                actor, item, count = busy.pop(done)
                try:
                    came = ray.get(done)
                except RayActorError as error:
                    log.warning("a process died at work: %s", type(error).__name__)
                    idle.append(self.hire())
                    if count < TRIES:
                        waiting.appendleft((item, count + 1))
                        continue
                    came = Lost()
                else:
                    idle.append(actor)
                yield item, came
        finally:
            for actor in (*idle, *(actor for actor, _, _ in busy.values())):
                ray.kill(actor)

    def hire(self) -> Any:
        """Another process; it waits until the cluster has room for it."""
        import ray

        threads = {"OMP_NUM_THREADS": str(max(1, int(self.cpus)))}
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "runtime_env": {"env_vars": threads}}
        return ray.remote(self.worker).options(**options).remote(*self.arguments)
