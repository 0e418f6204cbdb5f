"""Compute thread, the only thread that works with tensors.

Two threads that both run torch kernels each use their own pool of workers, which compete for the cores: passes take
1.5 times as long and more. So all torch work, loading models included, runs here: calls in order of arrival, and
between them `work`, one pass at a time, as long as there is any.

    compute = ComputeThread(work)    # work() -> bool: whether there was something to do
    compute.start()
    pipe = await asyncio.wrap_future(compute.call(load, "tiny-image"))
    compute.stop()
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Call = tuple["Future[Any]", Callable[[], Any]]


class ComputeThread:
    """Thread that runs queued calls first, then `work`, and sleeps if there is neither."""

    def __init__(self, work: Callable[[], bool]) -> None:
        self.work = work
        self.calls: SimpleQueue[Call | None] = SimpleQueue()
        self.thread: threading.Thread = threading.Thread(target=self._run, name="polydraft-compute", daemon=True)

    @property
    def alive(self) -> bool:
        return self.thread.is_alive()

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """End the thread after the calls queued so far."""
        self.calls.put(None)

    def call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> Future[T]:
        """Queue a call that runs between passes; return the future of its result or exception."""
        future: Future[T] = Future()
        self.calls.put((future, lambda: function(*arguments, **options)))
        return future

    def wake(self) -> None:
        """Wake the thread to look for work."""
        self.call(lambda: None)

    def _run(self) -> None:
        busy = False
        while True:
            try:
                call = self.calls.get(block=not busy)
            except Empty:
                busy = self.work()
                continue
            if call is None:
                return
            future, function = call
            if future.set_running_or_notify_cancel():
                settle(future, function)
            busy = True  # a call may have brought work


def settle(future: Future[Any], function: Callable[[], Any]) -> None:
    """Call `function` and give its result or exception to the future."""
    try:
        value = function()
    except BaseException as error:  # noqa: BLE001 - the caller gets it
        future.set_exception(error)
    else:
        future.set_result(value)
