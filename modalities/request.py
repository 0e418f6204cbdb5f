"""Host-side state of generation requests, and the scheduler that batches them.

A `GenerationRequest` is one call: a method, prompts, the tokens committed so far, events since they were last polled,
and the result. A `BatchScheduler` decodes requests of one method as rows of one batch. A `GenerationStream` is a
scheduler with a single request, for callers who want steps. A server has a scheduler for every method in use.

    request = pipe.run("two frogs on a blue background", seed=3)
    scheduler = BatchScheduler(request.method)
    scheduler.add_prompts(request, request.schedulable_prompts(8))
    while scheduler.num_live: scheduler.step()
    request.result()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from polydraft.core.decode import (
    Batch,
    Method,
    Request,
    StepResult,
    add_requests,
    decode_step,
    remove_requests,
    start_batch,
)
from polydraft.core.errors import PolydraftError
from polydraft.core.stats import DecodeStats, PhaseTimer
from polydraft.core.stopping import StopPoint, stop_requests
from polydraft.core.target.causal import PromptInputs

Event = TypeVar("Event")
Result = TypeVar("Result")


class GenerationRequest(ABC, Generic[Event, Result]):
    """Prompts of one call and what has been generated for them."""

    pipe: Any  # the pipeline that the request is for

    def __init__(self, method: Method, prompts: list[PromptInputs], max_live: int | None = None) -> None:
        self.method: Method = method
        self.prompts: list[PromptInputs] = prompts
        self.max_live: int = max_live or len(prompts)  # prompts that may be in the batch at a time
        self.num_started: int = 0  # prompts that have been prefilled; they start in order
        self.num_live: int = 0  # prompts in the batch
        self.passes: int = 0  # target passes that any of the prompts took part in
        self.rows: list[Request] = [Request(index, self.empty_stats()) for index in range(len(prompts))]
        self.stopwatch: PhaseTimer = PhaseTimer()  # of the passes that any of the prompts took part in

    @property
    def is_finished(self) -> bool:
        """Return whether every prompt has ended."""
        return self.num_started == len(self.prompts) and not self.num_live

    @property
    def errors(self) -> list[PolydraftError]:
        """Return the errors of prompts that failed; the other prompts are not affected."""
        return [row.error for row in self.rows if row.error is not None]

    @property
    def has_failed(self) -> bool:
        """Return whether every prompt has failed, so that there is no result."""
        return len(self.errors) == len(self.prompts)

    @property
    def num_generated(self) -> int:
        """Return the number of tokens committed so far."""
        return sum(row.stats.tokens for row in self.rows)

    @property
    def num_prompt_tokens(self) -> int:
        """Return the number of prompt tokens; with classifier-free guidance those of the conditional branch."""
        return sum(len(prompt.branch_token_ids[0]) for prompt in self.prompts)

    @property
    def decode_seconds(self) -> float:
        """Return the seconds spent decoding so far, prefill excluded."""
        return self.stopwatch.decode_seconds

    def schedulable_prompts(self, room: int) -> list[int]:
        """Return the prompts that may start now, at most `room`."""
        count = min(self.max_live - self.num_live, room, len(self.prompts) - self.num_started)
        return list(range(self.num_started, self.num_started + max(0, count)))

    def mark_started(self, rows: dict[int, Request]) -> None:
        """Record that prompts have started.

        Args:
            rows (dict[int, Request]): the batch's record of each prompt, by the prompt's index.
        """
        for prompt, request in rows.items():
            self.rows[prompt] = request
        self.num_started += len(rows)
        self.num_live += len(rows)

    def on_step(self, committed: dict[int, tuple[int, list[Any]]], ended: set[int]) -> dict[int, StopPoint]:
        """Process the tokens that one target pass committed.

        Args:
            committed (dict): by prompt, the number of tokens before the pass and the tokens that it committed.
            ended (set[int]): prompts that the pass ended.

        Returns:
            dict[int, StopPoint]: prompts to end within the committed tokens, whether or not the pass ended them.
        """
        self.passes += 1
        stopped = self.on_tokens(committed, ended)
        self.num_live -= len(ended | stopped.keys())
        return stopped

    def stats(self) -> list[DecodeStats]:
        """Return the statistics of every prompt, with the times of the passes that the request took part in."""
        for row in self.rows:
            row.stats.set_times(self.stopwatch)
        return [row.stats for row in self.rows]

    def total_stats(self) -> DecodeStats:
        """Return the statistics of all prompts together."""
        return DecodeStats.sum_rows(self.stats() or [self.empty_stats()])

    def empty_stats(self) -> DecodeStats:
        """Return the statistics of a prompt that has not been decoded."""
        return DecodeStats(self.method.name, self.method.effective_guarantee)

    def close(self) -> None:
        """Give back files that the request holds, if any; it is not decoded any further."""

    @abstractmethod
    def on_tokens(self, committed: dict[int, tuple[int, list[Any]]], ended: set[int]) -> dict[int, StopPoint]:
        """Take the committed tokens, with arguments and result of `on_step`."""

    @abstractmethod
    def poll_events(self) -> list[Event]:
        """Return the events since the last call."""

    @abstractmethod
    def result(self) -> Result:
        """Return what has been generated so far."""


class BatchScheduler:
    """Batch of one method, whose rows are prompts of any number of requests."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.batch: Batch = start_batch(method, [])
        self.owners: dict[int, tuple[GenerationRequest[Any, Any], int]] = {}  # request and prompt of every row id
        self.next_id: int = 0

    @property
    def num_live(self) -> int:
        """Return the number of rows in the batch."""
        return len(self.batch)

    @property
    def is_consistent(self) -> bool:
        """Return whether all parts of the batch have the same rows; a step that failed half-way leaves them apart."""
        return len(self.batch.state) == len(self.batch.running) == len(self.batch.noise.temperatures)

    def add_prompts(self, request: GenerationRequest[Any, Any], prompts: list[int]) -> None:
        """Prefill prompts of a request and add them to the batch."""
        if not prompts:
            return
        ids = list(range(self.next_id, self.next_id + len(prompts)))
        self.next_id += len(ids)
        before = Counter(self.batch.timer.seconds)
        add_requests(self.method, self.batch, [request.prompts[prompt] for prompt in prompts], ids)
        request.stopwatch.seconds += self.batch.timer.seconds - before
        self.owners.update((id, (request, prompt)) for id, prompt in zip(ids, prompts, strict=True))
        request.mark_started({prompt: self.batch.requests[id] for id, prompt in zip(ids, prompts, strict=True)})

    def step(self) -> StepResult:
        """Run one target pass over every row and hand its tokens to the requests."""
        before = Counter(self.batch.timer.seconds)
        result = decode_step(self.method, self.batch)
        spent = self.batch.timer.seconds - before
        owners = {id: self.owners[id] for id in result.requests}
        committed: dict[GenerationRequest[Any, Any], dict[int, tuple[int, list[Any]]]] = {}
        for id, num_before, tokens in zip(result.requests, result.num_generated_before, result.committed, strict=True):
            request, prompt = owners[id]
            committed.setdefault(request, {})[prompt] = num_before, tokens
        ended: dict[GenerationRequest[Any, Any], set[int]] = {request: set() for request in committed}
        for id in result.ended_requests:
            ended[owners[id][0]].add(owners[id][1])
        stops: dict[int, StopPoint] = {}
        for request, rows in committed.items():
            request.stopwatch.seconds += spent
            stopped = request.on_step(rows, ended[request])
            row_ids = {prompt: id for id, (owner, prompt) in owners.items() if owner is request}
            stops.update((row_ids[prompt], end) for prompt, end in stopped.items())
        result = stop_requests(self.batch, result, stops)
        for id in result.ended_requests:
            self._release_row(id)
        return result

    def remove_request(self, request: GenerationRequest[Any, Any], reason: str = "cancelled") -> None:
        """Remove all rows of a request from the batch.

        Args:
            request (GenerationRequest): the request.
            reason (str): the finish reason of its prompts.
        """
        row_ids = {id: reason for id, (owner, _) in self.owners.items() if owner is request}
        remove_requests(self.batch, row_ids)
        for id in row_ids:
            self._release_row(id)
        request.num_live -= len(row_ids)

    def _release_row(self, id: int) -> None:
        """Forget a row that has left the batch."""
        del self.owners[id]
        request = self.batch.release(id)
        self.method.drafter.finish(request.prompt_end, request.ids)


R = TypeVar("R", bound=GenerationRequest[Any, Any])


class GenerationStream(Generic[R]):
    """One request decoded step by step.

    It may be closed at any time. The pipeline's lock is held during a step only, so threads can take turns.
    """

    def __init__(self, request: R) -> None:
        self.request = request
        self.scheduler: BatchScheduler = BatchScheduler(request.method)
        self.closed: bool = False

    @property
    def prompts(self) -> list[PromptInputs]:
        """Return the prompts of the request."""
        return self.request.prompts

    def steps(self) -> Iterator[StepResult]:
        """Yield target passes until the request has finished or the stream is closed.

        Raises:
            PolydraftError: every prompt of the request has failed.
        """
        while not (self.closed or self.request.is_finished):
            with self.request.pipe.lock:
                self.scheduler.add_prompts(self.request, self.request.schedulable_prompts(self.request.max_live))
                result = self.scheduler.step()
            if self.request.has_failed:
                raise self.request.errors[0]
            yield result

    def close(self) -> None:
        """Stop before the next step; the result is what has been generated so far."""
        self.closed = True
