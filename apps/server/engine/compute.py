"""The one thread that works with tensors.

Two threads that both run torch kernels each bring their own pool of helpers, which get in each other's way: passes take
1.5 times as long and more. So whatever computes with torch, loading models included, is done here: calls in the order
they came, and between them `work`, a pass at a time, as long as there is any.

    compute = Compute(work)          # work() -> bool: whether there was something to do
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


class Compute:
    """Calls first, then work, then sleep until the next call."""

    def __init__(self, work: Callable[[], bool]) -> None:
        self.work = work
        self.calls: SimpleQueue[Call | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="polydraft-compute", daemon=True)

    @property
    def alive(self) -> bool:
        return self.thread.is_alive()

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """After the calls made so far, end."""
        self.calls.put(None)

    def call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> Future[T]:
        """Do it soon, between passes; what it returns or raises is the future's."""
        future: Future[T] = Future()
        self.calls.put((future, lambda: function(*arguments, **options)))
        return future

    def wake(self) -> None:
        """Look whether there is work."""
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
    """What `function` returns or raises becomes the future's."""
    try:
        value = function()
    except BaseException as error:  # noqa: BLE001 - whoever waits is told
        future.set_exception(error)
    else:
        future.set_result(value)
