"""Server process from start to end: listen, load, answer, and on SIGTERM or SIGINT finish accepted requests.

While models are loaded /health is answered, /ready says `loading`, and work is refused with 503. The first signal turns
/ready to 503, refuses new work and finishes accepted requests within `drain` seconds; the second one ends at once.
Failures of the terminal output or the log never affect either.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from polydraft.apps.server.api.app import create_app, create_engine, guarded
from polydraft.apps.server.api.sessions import Sessions
from polydraft.apps.server.connections import ApiServer
from polydraft.apps.server.engine.engine import ModelChoice, ServerEngine
from polydraft.apps.server.listening import address
from polydraft.apps.server.settings import ServerSettings

Publish = Callable[[str], None]
TURN = 0.0005  # seconds after which the compute thread lets the event loop in; Python's own 0.005 delays every answer
SIGNALS = (signal.SIGTERM, signal.SIGINT)
PATIENCE = 1.0  # seconds that the compute thread gets to end after the last answer


class StopSignals:
    """Stop signals of the process: the first requests a drain, the second an immediate end."""

    def __init__(self, event: Callable[[], Any] = asyncio.Event) -> None:
        """event: makes an event of the kind that is waited for, of asyncio or of threads."""
        self.finish: Any = event()
        self.end: Any = event()
        self.name: str = ""

    def listen(self) -> None:
        """Take SIGTERM and SIGINT from now on, in the running event loop."""
        loop = asyncio.get_running_loop()
        for each in SIGNALS:
            loop.add_signal_handler(each, self.take, each.name)

    def take(self, name: str) -> None:
        """Record a signal; cannot fail."""
        (self.end if self.finish.is_set() else self.finish).set()
        self.name = name


async def serve(
    settings: ServerSettings, listening: socket.socket, publish: Publish, signals: StopSignals
) -> ServerEngine:
    """Serve until a signal arrives; return the engine, whose compute thread may still be busy after a second signal."""
    engine = create_engine(settings)
    sessions = Sessions()
    bare = guarded(create_app(settings.model_copy(update={"ui": False}), engine), settings, sessions)
    server = ApiServer(bare, listening, keep_alive=settings.keep_alive)
    async with server.running():
        try:
            loading = engine.start(choices(settings), publish, settings.threads)
            if await unless(signals.finish, loading):
                app = create_app(settings, engine)
                async with app.router.lifespan_context(app):
                    server.app = guarded(app, settings, sessions)
                    announce(settings, listening, publish)
                    await unless(signals.finish, server.failed())
                    await drain(engine, server, settings.drain, signals, publish)
            else:
                publish(f"{signals.name}: stopping before all models were loaded")
        finally:
            await engine.stop(PATIENCE)
    return engine


def choices(settings: ServerSettings) -> list[ModelChoice]:
    """Return the models to load, with the settings of each."""
    return [ModelChoice(name, modality, **settings.settings_of(name)) for name, modality in settings.model_choices]


def announce(settings: ServerSettings, listening: socket.socket, publish: Publish) -> None:
    if not settings.loopback and not settings.key:
        publish(f"warning: {settings.host} is reached by others and no key is needed")
    publish(f"listening on {address(settings, listening)}")


async def drain(
    engine: ServerEngine, server: ApiServer, seconds: float, signals: StopSignals, publish: Publish
) -> None:
    """Finish accepted requests and send their responses, within a time limit and until a second signal."""
    publish(f"{signals.name}: taking nothing new, finishing {len(engine.handles)} requests")

    async def finished() -> None:
        await engine.drain(seconds)
        await server.all_sent()

    with suppress(TimeoutError):
        await asyncio.wait_for(unless(signals.end, finished()), seconds)
    await engine.drain(0)
    server.force_exit = signals.end.is_set()


async def unless(event: asyncio.Event, work: Awaitable[Any]) -> bool:
    """Await `work`, but cancel it at `event`; return whether it finished. Its exceptions propagate."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        waiting.cancel()
        working.cancel()


def unfailing(publish: Publish) -> Publish:
    """Return `publish` for lines that are worth no answer: where one cannot be written, it is not."""

    def safely(line: str) -> None:
        with suppress(Exception):
            publish(line)

    return safely


def run(settings: ServerSettings, listening: socket.socket, publish: Publish) -> None:
    """Serve at the listening socket until a signal; `publish` receives lines for the terminal."""
    sys.setswitchinterval(TURN)

    async def served() -> ServerEngine:
        signals = StopSignals()
        signals.listen()
        return await serve(settings, listening, unfailing(publish), signals)

    engine = asyncio.run(served())
    if engine.healthy:  # abandon a running pass or model load
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(0)
