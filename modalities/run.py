"""What a request needs of the loop, apart from who drives it.

A `Run` is one request on the host: a method, prompts, how many of them may be under way at a time, what is new since it
was last asked, and the result. A `Driver` takes runs of one method through the loop as rows of one batch, and a
`Stream` is a driver with one run, for callers who want steps. A server has a driver for every method in use.

    run = pipe.run("two frogs on a blue background", seed=3)
    driver = Driver(run.method)
    driver.join(run, run.due(8))
    while driver.live: driver.turn()
    run.result()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from polydraft.core.decode import Batch, Method, Request, Step, join, leave, start, step
from polydraft.core.errors import PolydraftError
from polydraft.core.stats import DecodeStats, Stopwatch
from polydraft.core.stopping import Stop, stop
from polydraft.core.target import Prompt

New = TypeVar("New")
Result = TypeVar("Result")


class Run(ABC, Generic[New, Result]):
    """One request under way.

    together: prompts that may be live at a time; begun: how many have joined, in order; live: how many are under way.
    rows: what the core knows of every prompt. passes: target passes that any of its rows took part in. watch: phase
    times of those passes. pipe: the pipeline that it is a request to.
    """

    pipe: Any

    def __init__(self, method: Method, prompts: list[Prompt], together: int | None = None) -> None:
        self.method, self.prompts = method, prompts
        self.together = together or len(prompts)
        self.begun = self.live = self.passes = 0
        self.rows = [Request(place, DecodeStats(method.name, method.label)) for place in range(len(prompts))]
        self.watch = Stopwatch()

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.begun == len(self.prompts) and not self.live

    @property
    def errors(self) -> list[PolydraftError]:
        """Why prompts failed that could not go on; the others did not notice."""
        return [row.error for row in self.rows if row.error is not None]

    @property
    def has_failed(self) -> bool:
        """Whether nothing is left to return: no prompt could go on to its end."""
        return len(self.errors) == len(self.prompts)

    @property
    def generated(self) -> int:
        """Tokens committed so far."""
        return sum(row.stats.tokens for row in self.rows)

    @property
    def prompt_tokens(self) -> int:
        """Tokens that were read; of guided prompts the conditional branch."""
        return sum(len(prompt.branches[0]) for prompt in self.prompts)

    @property
    def seconds(self) -> float:
        """Spent decoding so far, prefill apart."""
        return self.watch.decoding

    def due(self, room: int) -> list[int]:
        """Which prompts should join now, `room` at most."""
        most = min(self.together - self.live, room, len(self.prompts) - self.begun)
        return list(range(self.begun, self.begun + max(0, most)))

    def joined(self, rows: dict[int, Request]) -> None:
        """Prompts are live, with the core's record of each."""
        for prompt, request in rows.items():
            self.rows[prompt] = request
        self.begun += len(rows)
        self.live += len(rows)

    def passed(self, committed: dict[int, tuple[int, list[Any]]], ended: set[int]) -> dict[int, Stop]:
        """A pass came to this: by prompt, how many tokens it had and which were committed, and which prompts ended.

        Returns prompts that end inside of what was committed, whether or not the loop ended them behind it.
        """
        self.passes += 1
        stopped = self.take(committed, ended)
        self.live -= len(ended | stopped.keys())
        return stopped

    def stats(self) -> list[DecodeStats]:
        """Of every prompt, with the times of the passes they took part in."""
        for row in self.rows:
            row.stats.time(self.watch)
        return [row.stats for row in self.rows]

    @abstractmethod
    def take(self, committed: dict[int, tuple[int, list[Any]]], ended: set[int]) -> dict[int, Stop]:
        """See `passed`."""

    @abstractmethod
    def news(self) -> list[New]:
        """What there is to show since last asked."""

    @abstractmethod
    def result(self) -> Result:
        """What was made so far; all of it when the run is over."""


class Driver:
    """Rows of one method, and whose they are."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.batch: Batch = start(method, [])
        self.owners: dict[int, tuple[Run[Any, Any], int]] = {}
        self.next_id = 0

    @property
    def live(self) -> int:
        """Rows under way."""
        return len(self.batch)

    @property
    def sound(self) -> bool:
        """Whether host and core agree about the rows; what failed half-way leaves them apart."""
        return len(self.batch.state) == len(self.batch.live) == len(self.batch.noise.temperatures)

    def join(self, run: Run[Any, Any], prompts: list[int]) -> None:
        """Prompts of `run` become rows."""
        if not prompts:
            return
        ids = list(range(self.next_id, self.next_id + len(prompts)))
        self.next_id += len(ids)
        before = Counter(self.batch.watch.seconds)
        join(self.method, self.batch, [run.prompts[prompt] for prompt in prompts], ids)
        run.watch.seconds += self.batch.watch.seconds - before
        self.owners.update((id, (run, prompt)) for id, prompt in zip(ids, prompts, strict=True))
        run.joined({prompt: self.batch.requests[id] for id, prompt in zip(ids, prompts, strict=True)})

    def turn(self) -> Step:
        """One target pass over every row; its runs learn what it came to."""
        before = Counter(self.batch.watch.seconds)
        made = step(self.method, self.batch)
        spent = self.batch.watch.seconds - before
        owned = {id: self.owners[id] for id in made.requests}
        committed: dict[Run[Any, Any], dict[int, tuple[int, list[Any]]]] = {}
        for id, had, tokens in zip(made.requests, made.generated, made.committed, strict=True):
            run, prompt = owned[id]
            committed.setdefault(run, {})[prompt] = had, tokens
        ended: dict[Run[Any, Any], set[int]] = {run: set() for run in committed}
        for id in made.ended:
            ended[owned[id][0]].add(owned[id][1])
        stops: dict[int, Stop] = {}
        for run, rows in committed.items():
            run.watch.seconds += spent
            stopped = run.passed(rows, ended[run])
            mine = {prompt: id for id, (owner, prompt) in owned.items() if owner is run}
            stops.update((mine[prompt], end) for prompt, end in stopped.items())
        made = stop(self.batch, made, stops)
        for id in made.ended:
            self._forget(id)
        return made

    def leave(self, run: Run[Any, Any], reason: str = "cancelled") -> None:
        """All rows of `run` leave."""
        mine = {id: reason for id, (owner, _) in self.owners.items() if owner is run}
        leave(self.batch, mine)
        for id in mine:
            self._forget(id)
        run.live -= len(mine)

    def _forget(self, id: int) -> None:
        del self.owners[id]
        self.batch.release(id)


R = TypeVar("R", bound=Run[Any, Any])


class Stream(Generic[R]):
    """One run by itself, pass by pass; it may be left at any time. Between passes other threads may make theirs."""

    def __init__(self, run: R) -> None:
        self.run, self.driver, self.closed = run, Driver(run.method), False

    @property
    def prompts(self) -> list[Prompt]:
        return self.run.prompts

    def steps(self) -> Iterator[Step]:
        """Target passes until the run is over or the stream closed; raises where the whole run has failed."""
        while not (self.closed or self.run.over):
            with self.run.pipe.lock:
                self.driver.join(self.run, self.run.due(self.run.together))
                made = self.driver.turn()
            if self.run.has_failed:
                raise self.run.errors[0]
            yield made

    def close(self) -> None:
        """Stop here."""
        self.closed = True
