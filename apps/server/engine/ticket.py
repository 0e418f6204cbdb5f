"""A request as whoever made it sees it: what is new, the result, and a way to stop.

async with engine.submit("tiny-image", "image", {"prompt": "a cat"}) as ticket:   # leaving it cancels
    async for news in ticket: ...
    result = await ticket.result()
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from polydraft.apps.server.errors import Cancelled
from polydraft.core.stats import DecodeStats

log = logging.getLogger("polydraft.server")


class Ticket:
    """model, modality, prompts: what was asked of whom, and how many prompts it counts as.

    Filled in as it goes: state ("waiting", "running", "done", "failed", "cancelled"); method and prompt_tokens, once
    it was read; stats, once it has ended, however it did; accepted_at, started_at (of its first prefill), first_at (of
    the first news), ended_at on the monotonic clock. Belongs to the event loop it was made in; the compute thread reads
    `cancelled` alone.
    """

    def __init__(self, id: int, model: str, modality: str, prompts: int, ended: Callable[[Ticket], None]) -> None:
        self.id, self.model, self.modality, self.prompts = id, model, modality, prompts
        self.loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Any] = self.loop.create_future()
        self.outcome.add_done_callback(lambda future: future.cancelled() or future.exception())  # nobody may wait
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.state, self.cancelled = "waiting", False
        self.accepted_at = time.monotonic()
        self.started_at: float | None = None
        self.first_at: float | None = None
        self.ended_at: float | None = None
        self.prompt_tokens, self.method = 0, ""
        self.pixels = 0  # of the pictures it came with, which admission counts
        self.stats: DecodeStats | None = None
        self._on_end = ended
        self._timer: asyncio.TimerHandle | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """The next news; ends with the request, raises what it failed with."""
        news = await self.queue.get()
        if news is not END:
            return news
        self.queue.put_nowait(END)
        if self.outcome.done() and self.outcome.exception() is not None:
            raise self.outcome.exception()  # type: ignore[misc]
        raise StopAsyncIteration

    async def result(self) -> Any:
        """`ImageResult`, `SpeechResult` or `ChatResult`; raises what the request failed with."""
        return await asyncio.shield(self.outcome)

    def cancel(self) -> None:
        """Stop; its rows are free before the next pass. Nothing happens where it has ended."""
        self.fail(Cancelled("the request was cancelled."))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.cancel()

    @property
    def error(self) -> BaseException | None:
        """Return what the request failed with, once it has."""
        return self.outcome.exception() if self.outcome.done() else None

    # What follows is for the engine, in the event loop.

    def expire(self, seconds: float, error: Exception) -> None:
        """Fail with `error` unless it ends within so many seconds."""
        self._timer = self.loop.call_later(seconds, self.fail, error)

    def began(self, method: str, prompt_tokens: int, started_at: float) -> None:
        if self.state == "waiting":
            self.state, self.method, self.prompt_tokens = "running", method, prompt_tokens
            self.started_at = started_at

    def tell(self, news: Any) -> None:
        if not self.outcome.done():
            self.first_at = self.first_at or time.monotonic()
            self.queue.put_nowait(news)

    def finish(self, result: Any) -> None:
        if not self.outcome.done():
            self.first_at = self.first_at or time.monotonic()
            self.outcome.set_result(result)
            self._end("done")

    def fail(self, error: BaseException) -> None:
        if not self.outcome.done():
            self.cancelled = True
            self.outcome.set_exception(error)
            self._end("cancelled" if isinstance(error, Cancelled) else "failed")

    def _end(self, state: str) -> None:
        self.state, self.ended_at = state, time.monotonic()
        if self._timer is not None:
            self._timer.cancel()
        self.queue.put_nowait(END)
        self._on_end(self)

    # And from the compute thread.

    def post(self, what: Callable[..., None], *arguments: Any) -> None:
        """Call a method of this ticket in its event loop, if that still runs."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(what, *arguments)


END: Any = object()
