"""Handle of a submitted request: progress events, result, and cancellation.

async with engine.submit("tiny-image", "image", {"prompt": "a cat"}) as handle:   # leaving the block cancels
    async for progress in handle: ...
    result = await handle.result()
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from polydraft.apps.server.errors import Cancelled
from polydraft.core.stats import DecodeStats

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

log: logging.Logger = logging.getLogger("polydraft.server")


class RequestHandle:
    """Handle of a submitted request; `prompts` is the number of prompts that admission counts.

    State is "waiting", "running", "done", "failed" or "cancelled". Method is set at the first prefill, prompt_tokens at
    every one, and `stats` at the end, whatever the outcome. accepted_at, started_at (first prefill), first_at (first
    progress event) and ended_at are times of the monotonic clock. A handle belongs to the event loop in which it was
    made; the compute thread and readers of uploads read `cancelled` only.
    """

    def __init__(
        self, id: int, model: str, modality: str, prompts: int, ended: Callable[[RequestHandle], None]
    ) -> None:
        self.id: int = id
        self.model: str = model
        self.modality: str = modality
        self.prompts: int = prompts
        self.loop: AbstractEventLoop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Any] = self.loop.create_future()
        self.outcome.add_done_callback(lambda future: future.cancelled() or future.exception())  # may never be awaited
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.state: str = "waiting"
        self.cancelled: bool = False
        self.accepted_at: float = time.monotonic()
        self.started_at: float | None = None
        self.first_at: float | None = None
        self.ended_at: float | None = None
        self.prompt_tokens: int = 0
        self.method: str = ""
        self.pixels = 0  # of the request's images, which admission counts
        self.stats: DecodeStats | None = None
        self._on_end = ended
        self._timer: asyncio.TimerHandle | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """Return the next progress event; stop at the end of the request, raise its error."""
        progress = await self.queue.get()
        if progress is not END:
            return progress
        self.queue.put_nowait(END)
        if self.outcome.done() and self.outcome.exception() is not None:
            raise self.outcome.exception()  # type: ignore[misc]
        raise StopAsyncIteration

    async def result(self) -> Any:
        """Return the result of the modality, such as `ImageResult`, or raise the error of the request."""
        return await asyncio.shield(self.outcome)

    def cancel(self) -> None:
        """Cancel the request; its rows are free before the next pass. Has no effect after its end."""
        self.fail(Cancelled("the request was cancelled."))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.cancel()

    @property
    def error(self) -> BaseException | None:
        """Return the error that the request failed with, or None."""
        return self.outcome.exception() if self.outcome.done() else None

    # Methods for the engine, in the event loop.

    def expire(self, seconds: float, error: Exception) -> None:
        """Fail with `error` unless the request ends within `seconds`."""
        self._timer = self.loop.call_later(seconds, self.fail, error)

    def began(self, method: str, prompt_tokens: int, started_at: float) -> None:
        """Take note that prompts have been prefilled."""
        self.prompt_tokens = prompt_tokens  # grows with every window of a recording
        if self.state == "waiting":
            self.state, self.method = "running", method
            self.started_at = started_at

    def publish(self, progress: Any) -> None:
        if not self.outcome.done():
            self.first_at = self.first_at or time.monotonic()
            self.queue.put_nowait(progress)

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

    # Methods for the compute thread.

    def post(self, what: Callable[..., None], *arguments: Any) -> None:
        """Call a method of this handle in its event loop, if that still runs."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(what, *arguments)


END: Any = object()
