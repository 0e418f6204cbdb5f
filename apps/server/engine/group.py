"""Requests of one method whose prompts are rows of one batch; they join and leave between passes.

Everything here happens on the compute thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polydraft.apps.server.engine.ticket import Ticket
from polydraft.apps.server.errors import ComputeFailed
from polydraft.core.decode import Method
from polydraft.core.errors import PolydraftError
from polydraft.core.stats import DecodeStats
from polydraft.core.system_errors import system_error
from polydraft.modalities.run import Driver, Run

log = logging.getLogger("polydraft.server")
Ended = Callable[[Ticket, DecodeStats], None]


@dataclass(eq=False)
class Job:
    """A request under way. wants_news: whether anybody looks before it is finished."""

    ticket: Ticket
    run: Run[Any, Any]
    wants_news: bool


class Group:
    """rows: most that are live at a time. One request takes three quarters of them at most, so that others find room.

    ended: told of every request that leaves, however it ended, with the statistics of what was computed for it.
    """

    def __init__(self, method: Method, pipe: Any, model: str, rows: int, ended: Ended) -> None:
        self.method, self.pipe, self.model, self.rows, self.ended = method, pipe, model, rows, ended
        self.most_each = max(1, rows - rows // 4)
        self.driver = Driver(method)
        self.jobs: list[Job] = []

    @property
    def live(self) -> int:
        return self.driver.live

    def add(self, job: Job) -> None:
        self.jobs.append(job)

    def turn(self) -> None:
        """Forget who is gone, let in who waits, and make one pass."""
        for job in [job for job in self.jobs if job.ticket.cancelled]:
            self.drop(job)
        self.fill()
        if not self.live:
            return
        before = {job: job.run.passes for job in self.jobs}
        try:
            self.driver.turn()
        except Exception as error:  # whatever it is, other groups and later requests must not notice
            log.exception("a pass of %s failed with %d requests", self.method.name, len(self.jobs))
            self.rebuild(error)
            return
        for job in self.jobs.copy():
            if job.run.passes > before[job]:
                self.tell(job)

    def fill(self) -> None:
        """Prompts join in turns, one of each request, as long as there is room."""
        room, shares = self.rows - self.live, dict.fromkeys(self.jobs, 0)
        while room > 0:
            before = room
            for job, share in shares.items():
                most = min(self.most_each - job.run.live, share + 1)
                if room and len(job.run.due(most)) > share:
                    shares[job], room = share + 1, room - 1
            if room == before:
                break
        for job, share in shares.items():
            if share and job in self.jobs:
                self.let_in(job, share)

    def let_in(self, job: Job, share: int) -> None:
        """Read prompts of one request; what goes wrong there is its own fault while the batch is whole."""
        started_at = time.monotonic()
        try:
            self.driver.join(job.run, job.run.due(share))
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            if self.driver.sound:
                self.drop(job, told(error))
            else:
                self.rebuild(error)
        else:
            job.ticket.post(job.ticket.began, self.method.name, job.run.prompt_tokens, started_at)

    def tell(self, job: Job) -> None:
        """News of one request, and its result; or what it failed with, if one of its rows could not go on."""
        if job.run.errors:
            self.drop(job, told(job.run.errors[0]))
            return
        try:
            news = job.run.news()
            result = job.run.result() if job.run.over else None
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            self.drop(job, told(error))
            return
        for new in news if job.wants_news else ():
            job.ticket.post(job.ticket.tell, new)
        if result is not None:
            self.remove(job)
            job.ticket.post(job.ticket.finish, result)

    def drop(self, job: Job, error: Exception | None = None) -> None:
        """A request leaves before it is over."""
        self.driver.leave(job.run)
        self.remove(job)
        if error is not None:
            job.ticket.post(job.ticket.fail, error)

    def remove(self, job: Job) -> None:
        self.jobs.remove(job)
        self.ended(job.ticket, DecodeStats.total(job.run.stats()))

    def rebuild(self, error: Exception) -> None:
        """The batch is lost: its requests fail, and the next ones find a new one."""
        lost, self.jobs = self.jobs, []
        for job in lost:
            self.ended(job.ticket, DecodeStats.total(job.run.stats()))
            job.ticket.post(job.ticket.fail, told(error))
        self.driver = Driver(self.method)


def told(error: Exception) -> Exception:
    """The error as a client may see it."""
    if isinstance(error, PolydraftError):
        return error
    log.error("unexpected: %s: %s", type(error).__name__, error, exc_info=error)
    return system_error(error, "the computation failed") or ComputeFailed(
        "the computation failed unexpectedly; try again, and look at the server's log if it stays so."
    )
