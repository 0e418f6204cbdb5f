"""Requests of one method whose prompts are rows of one batch; they join and leave between passes.

This module runs on the compute thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polydraft.apps.server.engine.handle import RequestHandle
from polydraft.apps.server.engine.meter import ComputeUsage
from polydraft.apps.server.errors import ComputeFailed
from polydraft.core.checks.system_errors import system_error
from polydraft.core.decode import Method
from polydraft.core.errors import PolydraftError
from polydraft.core.stats import DecodeStats
from polydraft.modalities.request import BatchScheduler, GenerationRequest

log: logging.Logger = logging.getLogger("polydraft.server")
Ended = Callable[[RequestHandle, DecodeStats], None]


@dataclass(eq=False)
class QueuedRequest:
    """Request that waits for rows or is being decoded."""

    handle: RequestHandle
    run: GenerationRequest[Any, Any]
    wants_progress: bool


class BatchGroup:
    """Requests of one method that decode as one batch.

    At most `rows` rows are live; one request takes at most three quarters of them, so that others find room. `ended` is
    called for every request that leaves, however it ended, with the statistics of its computation; `usage` counts what
    the model computes.
    """

    def __init__(
        self, method: Method, pipe: Any, model: str, rows: int, ended: Ended, usage: ComputeUsage | None = None
    ) -> None:
        self.method: Method = method
        self.pipe: Any = pipe
        self.model: str = model
        self.rows: int = rows
        self.ended: Ended = ended
        self.usage: ComputeUsage = usage or ComputeUsage()
        self.most_each: int = max(1, rows - rows // 4)
        self.scheduler: BatchScheduler = BatchScheduler(method)
        self.jobs: list[QueuedRequest] = []

    @property
    def live(self) -> int:
        return self.scheduler.num_live

    def add(self, job: QueuedRequest) -> None:
        self.jobs.append(job)

    def turn(self) -> None:
        """Drop cancelled requests, add waiting prompts, and run one pass."""
        for job in [job for job in self.jobs if job.handle.cancelled]:
            self.drop(job)
        for job in [job for job in self.jobs if job.run.is_finished]:  # one in which there was nothing to decode
            self.publish(job)
        started_at = time.perf_counter()
        self.fill()
        filled_at = time.perf_counter()
        self.usage.join_seconds += filled_at - started_at
        if not self.live:
            return
        before = {job: job.run.passes for job in self.jobs}
        try:
            self.scheduler.step()
        except Exception as error:  # whatever it is, other groups and later requests must not notice
            log.exception("a pass of %s failed with %d requests", self.method.name, len(self.jobs))
            self.rebuild(error)
            return
        stepped_at = time.perf_counter()
        self.usage.steps += 1
        self.usage.step_seconds += stepped_at - filled_at
        for job in self.jobs.copy():
            if job.run.passes > before[job]:
                self.publish(job)
        self.usage.publish_seconds += time.perf_counter() - stepped_at

    def fill(self) -> None:
        """Add waiting prompts while there is room, round-robin over the requests."""
        room, shares = self.rows - self.live, dict.fromkeys(self.jobs, 0)
        while room > 0:
            before = room
            for job, share in shares.items():
                most = min(self.most_each - job.run.num_live, share + 1)
                if room and len(job.run.schedulable_prompts(most)) > share:
                    shares[job], room = share + 1, room - 1
            if room == before:
                break
        for job, share in shares.items():
            if share and job in self.jobs:
                self.let_in(job, share)

    def let_in(self, job: QueuedRequest, share: int) -> None:
        """Prefill prompts of one request; an error fails this request only, as long as the batch is consistent."""
        started_at = time.monotonic()
        try:
            self.scheduler.add_prompts(job.run, job.run.schedulable_prompts(share))
        except Exception as error:  # noqa: BLE001 - the client gets it
            if self.scheduler.is_consistent:
                self.drop(job, to_client_error(error))
            else:
                self.rebuild(error)
        else:
            job.handle.post(job.handle.began, self.method.name, job.run.num_prompt_tokens, started_at)

    def publish(self, job: QueuedRequest) -> None:
        """Publish the progress of a request and its result, or its error if one of its rows could not go on."""
        if job.run.errors:
            self.drop(job, to_client_error(job.run.errors[0]))
            return
        try:
            progress = job.run.poll_events()
            result = job.run.result() if job.run.is_finished else None
        except Exception as error:  # noqa: BLE001 - the client gets it
            self.drop(job, to_client_error(error))
            return
        for new in progress if job.wants_progress else ():
            job.handle.post(job.handle.publish, new)
        if result is not None:
            self.remove(job)
            job.handle.post(job.handle.finish, result)

    def drop(self, job: QueuedRequest, error: Exception | None = None) -> None:
        """Remove a request before it has finished."""
        self.scheduler.remove_request(job.run)
        self.remove(job)
        if error is not None:
            job.handle.post(job.handle.fail, error)

    def remove(self, job: QueuedRequest) -> None:
        self.jobs.remove(job)
        job.run.close()
        self.ended(job.handle, job.run.total_stats())

    def rebuild(self, error: Exception) -> None:
        """Fail all requests of a batch that was lost, and start an empty one."""
        lost, self.jobs = self.jobs, []
        for job in lost:
            job.run.close()
            self.ended(job.handle, job.run.total_stats())
            job.handle.post(job.handle.fail, to_client_error(error))
        self.scheduler = BatchScheduler(self.method)


def to_client_error(error: Exception) -> Exception:
    """Return the error that a client may see."""
    if isinstance(error, PolydraftError):
        return error
    log.error("unexpected: %s: %s", type(error).__name__, error, exc_info=error)
    return system_error(error, "the computation failed") or ComputeFailed(
        "the computation failed unexpectedly; try again, and look at the server's log if it stays so."
    )
