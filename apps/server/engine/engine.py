"""One front over the core for many requests at once: submit, watch, wait, cancel.

    engine = Engine(Limits(rows=8, queue=32))
    await engine.start([ModelChoice("tiny-image"), ModelChoice("tiny-speech"), ModelChoice("tiny-vlm")])
    engine.models()                                # [Served(name, modality, card, methods, voices, …)]

    ticket = engine.submit("tiny-image", "image", {"prompt": "a cat", "seed": 3, "partial_images": 8})
    async for news in ticket:                      # ImageNews, SpeechNews or ChatNews, one a pass where there is any
        ...
    result = await ticket.result()                 # ImageResult, SpeechResult or ChatResult, as generate_* return them
    ticket.cancel()                                # at any time; its rows are free before the next pass
    async with engine.submit(...) as ticket: ...   # leaving the block cancels what has not ended

    await engine.drain(seconds=30)                 # nothing new is taken; what was accepted is finished or, late, fails
    await engine.stop()

`arguments` are those of `pipe.run`, which are those of `generate_image`, `generate_speech` and `chat` without model,
device, dtype and on_step; for pictures also `partial_images`, how often an unfinished picture is drawn, at equal
shares of its tokens. `model=None` is the first model of the modality. `submit` returns at once and raises TooBusy,
Draining, UnknownModel or InvalidArgument; whatever else is wrong is raised by the ticket, as a PolydraftError with one
sentence for the user.

What news holds (all frozen dataclasses, tensors on the CPU and not shared):

- `ImageNews`: tokens_done, tokens_total, passes, `codes` `[n, T]` (-1: not yet), `committed_at` `[n, T]` (which pass,
  from 1; 0: none; reshape by `served.pipe.grid` to colour runs), `pictures` (PIL images, empty unless one was due).
- `SpeechNews`: `audio` float32 that follows without a seam, sample_rate, sentence, codes, tokens_done, passes.
- `ChatNews`: `text` (what this pass added, maybe nothing), `pieces`, tokens_done, tokens_total, passes.

A ticket also knows state ("waiting", "running", "done", "failed", "cancelled"), prompt_tokens, accepted_at, first_at,
ended_at, and after its end `stats`. Tickets belong to the event loop in which they were made. The same seed gives the
same answer as alone, whatever else is under way; `worker.py` says what is batched with what. All work with tensors is
on one thread: `await engine.compute(function, …)` does some there, between passes; do none elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from polydraft.apps.server.engine.meter import Meter
from polydraft.apps.server.engine.ticket import Ticket
from polydraft.apps.server.engine.worker import Worker
from polydraft.apps.server.errors import Cancelled, DeadlinePassed, Draining, Loading, TooBusy
from polydraft.apps.server.limits import Admission, decoded_pixels
from polydraft.apps.server.models import ModelChoice, Served, read, warm_up
from polydraft.core.errors import InvalidArgument, UnknownModel
from polydraft.core.stats import DecodeStats
from polydraft.core.suggestions import did_you_mean

log = logging.getLogger("polydraft.server")
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """rows: prompts of one method that are decoded together. queue: prompts of a model that may wait besides.
    deadline: seconds that a request may take, waiting included. draft_rows: see `Worker`."""

    rows: int = 8
    queue: int = 32
    deadline: float = 300.0
    draft_rows: int | None = None


class Engine:
    """Models that are loaded, and the requests for them. meter: numbers for whoever watches; see `meter.py`.

    aliases: other names of models that are served.
    """

    def __init__(
        self, limits: Limits = Limits(), meter: Meter | None = None, aliases: Mapping[str, str] | None = None
    ) -> None:
        self.limits, self.meter, self.aliases = limits, meter or Meter(), dict(aliases or {})
        self.admission = Admission(limits.rows, limits.queue)
        self.worker = Worker(limits.rows, limits.draft_rows, self._left)
        self.served: dict[str, Served] = {}
        self.tickets: set[Ticket] = set()
        self.started = self.ready = self.draining = False
        self.count = 0

    async def start(
        self, choices: Sequence[ModelChoice], told: Callable[[str], None] = lambda line: None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        """Load and warm up every model, one after another. told: lines for whoever waits; threads: of torch."""
        self.worker.compute.start()
        self.started = True
        if threads is not None:
            await self.compute(torch.set_num_threads, threads)
        for choice in choices:
            begun = time.monotonic()
            served = await self.compute(read, choice)
            if served.name in self.served:
                raise InvalidArgument(f"model {served.name!r} is given twice; leave one out.")
            self.served[served.name] = served
            await self.compute(warm_up, served)
            told(f"{served.name} is ready after {time.monotonic() - begun:.1f} s")
        self.check_aliases()
        self.ready = True

    def check_aliases(self) -> None:
        """Raise InvalidArgument for an alias of a model that is not served, or one that is a model's own name."""
        for alias, name in self.aliases.items():
            if alias in self.served:
                raise InvalidArgument(f"alias {alias!r} is a model's own name; choose another.")
            if not any(served.answers_to(name) for served in self.models()):
                known = ", ".join(self.served)
                raise InvalidArgument(f"alias {alias!r} is of {name!r}, which is not served; served are {known}.")

    @property
    def healthy(self) -> bool:
        """Whether the compute thread lives."""
        return self.worker.compute.alive

    def models(self) -> list[Served]:
        return list(self.served.values())

    def model(self, name: str | None, modality: str | None = None) -> Served:
        """A model by name, or the first of a modality; raises UnknownModel, or Loading before all are there."""
        if not self.ready:
            raise Loading("the models are still being loaded; ask again when /ready says ok.")
        fitting = [served for served in self.models() if modality in (None, served.modality)]
        meant = None if name is None else self.aliases.get(name, name)
        for served in fitting:
            if meant is None or served.answers_to(meant):
                return served
        known = [served.name for served in fitting]
        what = f" for {modality}" if modality else ""
        if name is None:
            raise UnknownModel(f"no model{what} is served here; start the server with one.")
        meant = did_you_mean(name, known)
        raise UnknownModel(
            f"model {name!r:.80} is not served here{what}{meant}; served are {', '.join(known) or 'none'}."
        )

    def submit(
        self, model: str | None, modality: str, arguments: dict[str, Any], *, news: bool = True,
        deadline: float | None = None,
    ) -> Ticket:  # fmt: skip
        """Accept a request; news: whether the ticket will be iterated. See above."""
        if self.draining:
            raise Draining("the server is about to stop; ask another one, or later.")
        served = self.model(model, modality)
        prompts, pixels = served.prompts(arguments), decoded_pixels(arguments)
        try:
            self.admission.admit(served.name, prompts, pixels)
        except TooBusy:
            self.meter.rejected(served.name)
            raise
        self.count += 1
        ticket = Ticket(self.count, served.name, modality, prompts, self._ended)
        ticket.pixels = pixels
        self.tickets.add(ticket)
        seconds = self.limits.deadline if deadline is None else deadline
        ticket.expire(seconds, DeadlinePassed(f"the request took longer than {seconds:g} s; ask for less, or later."))
        self.worker.begin(served.pipe, ticket, arguments, news)
        return ticket

    async def compute(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Work with tensors, on the thread for it."""
        return await asyncio.wrap_future(self.worker.compute.call(function, *arguments, **options))

    async def drain(self, seconds: float) -> bool:
        """Take nothing new and wait for what was accepted; whether all of it was finished in time."""
        self.draining = True
        waiting = [ticket.outcome for ticket in self.tickets]
        if not waiting:
            return True
        _, late = await asyncio.wait(waiting, timeout=seconds)
        for ticket in list(self.tickets):
            ticket.fail(Cancelled("the server stopped before the request was finished; ask another one."))
        return not late

    async def stop(self, seconds: float = 30.0) -> None:
        """Drop whatever is left and end the compute thread, which gets so many seconds to end what it is at."""
        await self.drain(0)
        self.worker.compute.stop()
        if self.healthy:
            await asyncio.to_thread(self.worker.compute.thread.join, seconds)

    def _ended(self, ticket: Ticket) -> None:
        """A ticket has an outcome."""
        self.tickets.discard(ticket)
        assert ticket.ended_at is not None
        done = ticket.state == "done"
        took = ticket.ended_at - ticket.accepted_at if done else None
        self.admission.release(ticket.model, ticket.prompts, took, ticket.pixels)
        self.meter.ended(ticket)
        if ticket.state == "cancelled":
            self.worker.compute.wake()

    def _left(self, ticket: Ticket, stats: DecodeStats) -> None:
        """The compute thread has done with a request."""
        ticket.stats = stats
        ticket.post(self.meter.computed, ticket.model, stats)


__all__ = ["Engine", "Limits", "ModelChoice", "Served", "Ticket"]
