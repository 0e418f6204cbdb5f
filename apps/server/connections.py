"""Client connections, bounded in number and in time, so that idle and slow ones never block others.

    server = Server(app, listening, keep_alive=120)
    async with server.running(): ...

uvicorn bounds neither how long a request may take to arrive nor how many files are open: silent sockets live for ever,
and when the process has no file descriptor left, accepting fails thousands of times a second. Therefore:

- a request must arrive within `ARRIVAL` seconds, and a second more for every `RATE` bytes that came (the rule of
  Apache's mod_reqtimeout); a response that the client does not read is dropped after `STALL` seconds;
- at most `most` connections are open. A new one replaces the one that has been idle longest, then the one whose request
  has been arriving longest, never one that is being answered. If all are, it gets /health, /ready and /metrics, and 503
  for any other path.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from polydraft.apps.server.api import envelope
from polydraft.apps.server.api.guards import PROBES
from polydraft.apps.server.api.paths import route_path

log: logging.Logger = logging.getLogger("polydraft.server")

ARRIVAL, RATE = 20.0, 500  # seconds for a request to arrive, and bytes that earn another one
STALL = 60.0  # seconds in which a client reads nothing of its response
LOOK = 1.0  # seconds between looks at the clock
PAUSE = 0.1  # seconds after which accepting is tried again
QUIET = 60.0  # seconds between two lines about the same trouble
LAST_WORDS = 5  # seconds for pages to end, after all answers were sent
FEWEST, USUAL, SPARE = 4, 4096, 16  # connections at least and at most, and files that stay free besides
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def most_connections() -> int:
    """Return how many more connections fit under the process's limit of open files."""
    try:
        import resource
    except ImportError:  # Windows
        return 512
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return USUAL
    open_now = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 2 * SPARE
    return max(FEWEST, min(USUAL, limit - open_now - max(SPARE, limit // 4)))


class Connection(H11Protocol):
    """One connection and when its request began to arrive; None while nothing is due."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.opened: float = self.loop.time()
        self.arriving_since: float | None = self.opened
        self.received: int = 0
        self.unread: int = 0
        self.unread_since: float = self.opened

    def data_received(self, data: bytes) -> None:
        if self.arriving_since is None and not self.answering:
            self.arriving_since, self.received = self.loop.time(), 0
        self.received += len(data)
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.opened, self.arriving_since = self.loop.time(), None
        super().on_response_complete()

    @property
    def answering(self) -> bool:
        """Return whether a complete request awaits a complete response."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    @property
    def precious(self) -> tuple[bool, bool, float]:
        """Return how much would be lost with it; the least of all is the first to go."""
        return self.answering, self.received > 0 and self.arriving_since is not None, self.opened

    def is_overdue(self, now: float) -> bool:
        """Return whether its request has been arriving for too long."""
        if self.arriving_since is None or self.answering:
            return False
        return now - self.arriving_since > ARRIVAL + self.received / RATE

    def is_stalled(self, now: float) -> bool:
        """Return whether its client has not read for too long."""
        left = self.transport.get_write_buffer_size()
        if left == 0 or left < self.unread:
            self.unread_since = now
        self.unread = left
        return now - self.unread_since > STALL

    def has_unsent(self, prefix: str) -> bool:
        """Return whether an answer to a path below `prefix` is not wholly on its way."""
        asked = self.scope is not None and route_path(dict(self.scope)).startswith(prefix)
        return asked and (self.answering or self.transport.get_write_buffer_size() > 0)

    def refuse_late(self) -> None:
        """End it with 408 where a request had begun and nothing of an answer was sent."""
        begun = self.received > 0 and (self.cycle is None or not self.cycle.response_started)
        if begun and not self.transport.is_closing():
            self.transport.write(LATE)
            self.transport.close()
        else:
            self.transport.abort()


class Crowded:
    """ASGI application for surplus connections: answers probes, and 503 to any other request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or route_path(scope) in PROBES:
            await self.app(scope, receive, send)
            return
        refusal = envelope.answer(
            503, "too many connections are open; ask again in a moment.", "too_many_connections",
            headers={"retry-after": "1", "connection": "close"},
        )  # fmt: skip
        await refusal(scope, receive, send)


class ApiServer(uvicorn.Server):
    """uvicorn server without signal handlers that accepts connections itself.

    `app` may be exchanged while it runs; `most` bounds the number of open connections.
    """

    def __init__(self, app: ASGIApp, listening: socket.socket, *, keep_alive: int) -> None:
        self.app: ASGIApp = app
        self.listening: socket.socket = listening
        self.most: int = most_connections()
        self.logged_at: float = float("-inf")
        self.tasks: set[asyncio.Task[None]] = set()
        super().__init__(
            uvicorn.Config(
                self.current, interface="asgi3", http=Connection, ws="none", lifespan="off",
                log_config=None, access_log=False, server_header=False, timeout_keep_alive=keep_alive,
                timeout_graceful_shutdown=LAST_WORDS, headers=[("keep-alive", f"timeout={keep_alive}")],
            )
        )  # fmt: skip

    async def current(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `run.py`; uvicorn would refuse connections at once."""
        yield

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve within the block, and finish answers under way at its end."""
        self.listening.setblocking(False)
        serving = asyncio.create_task(self.serve(sockets=[]))
        while not self.started and not serving.done():
            await asyncio.sleep(0)
        accepting, watching = asyncio.create_task(self.accept()), asyncio.create_task(self.watch())
        self.tasks = {serving, accepting, watching}
        try:
            yield
        finally:
            self.should_exit = True
            accepting.cancel()
            await serving
            watching.cancel()
            await asyncio.gather(accepting, watching, return_exceptions=True)
            self.listening.close()

    async def failed(self) -> None:
        """Wait until it cannot go on, and raise why."""
        done, _ = await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()

    async def accept(self) -> None:
        """Take connections one by one, each with room made for it."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self.listening)
            except OSError as error:
                if error.errno in NO_ROOM:
                    self.tell_seldom("no file is left for a connection", error)
                    await self.make_room()
                    await asyncio.sleep(PAUSE)
                continue
            is_crowded = not await self.make_room()
            try:
                _, protocol = await loop.connect_accepted_socket(self.protocol, connection)
            except OSError:  # the client has gone
                connection.close()
                continue
            if is_crowded:
                protocol.app = Crowded(protocol.app)

    def protocol(self) -> Connection:
        return Connection(config=self.config, server_state=self.server_state, app_state={})

    async def make_room(self) -> bool:
        """Close the connection that a new one replaces; return whether there is room."""
        while len(self.server_state.connections) >= self.most:
            held = [each for each in self.server_state.connections if isinstance(each, Connection)]
            least = min(held, key=lambda each: each.precious, default=None)
            if least is None or least.answering:
                self.tell_seldom("all connections are being answered", None)
                return False
            least.transport.abort()
            self.server_state.connections.discard(least)
            await asyncio.sleep(0)  # in which its file is closed
        return True

    async def watch(self) -> None:
        """Close connections that are late or stalled."""
        while True:
            await asyncio.sleep(LOOK)
            now = asyncio.get_running_loop().time()
            for each in list(self.server_state.connections):
                if isinstance(each, Connection):
                    if each.is_overdue(now):
                        each.refuse_late()
                    elif each.is_stalled(now):
                        each.transport.abort()

    async def all_sent(self, prefix: str = "/v1/") -> None:
        """Wait until no answer to a path below `prefix` is under way."""
        while any(each.has_unsent(prefix) for each in self.server_state.connections if isinstance(each, Connection)):
            await asyncio.sleep(PAUSE / 2)

    def tell_seldom(self, what: str, error: OSError | None) -> None:
        """Log a recurring error at most once per interval."""
        now = asyncio.get_running_loop().time()
        if now - self.logged_at > QUIET:
            self.logged_at = now
            log.warning("%s; %d connections are open and %d may be%s", what, len(self.server_state.connections),
                        self.most, f" ({error})" if error else "")  # fmt: skip
