"""A server process from start to end: listen, load, answer, and on SIGTERM or SIGINT finish what was accepted.

While models are loaded /health is answered, /ready says `loading`, and work is refused with 503. The first signal turns
/ready to 503, refuses new work and finishes what was accepted within `drain` seconds; the second one ends at once. What
becomes of the notes and the log never matters to either.
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
from polydraft.apps.server.connections import Server
from polydraft.apps.server.engine.engine import Engine, ModelChoice
from polydraft.apps.server.listening import address
from polydraft.apps.server.settings import Settings

Publish = Callable[[str], None]
TURN = 0.0005  # seconds after which the compute thread lets the event loop in; Python's own 0.005 delays every answer
SIGNALS = (signal.SIGTERM, signal.SIGINT)
PATIENCE = 1.0  # seconds that the compute thread gets to end after the last answer


class StopSignals:
    """What was asked of the process: to finish, by the first signal, or to end at once, by the second."""

    def __init__(self, event: Callable[[], Any] = asyncio.Event) -> None:
        """event: makes an event of the kind that is waited for, of asyncio or of threads."""
        self.finish, self.end = event(), event()
        self.name = ""

    def listen(self) -> None:
        """Take SIGTERM and SIGINT from now on, in the running event loop."""
        loop = asyncio.get_running_loop()
        for each in SIGNALS:
            loop.add_signal_handler(each, self.take, each.name)

    def take(self, name: str) -> None:
        """Note a signal; nothing here can fail."""
        (self.end if self.finish.is_set() else self.finish).set()
        self.name = name


async def serve(settings: Settings, listening: socket.socket, publish: Publish, signals: StopSignals) -> Engine:
    """Serve until a signal comes; return the engine, whose compute thread may still be busy after a second one."""
    engine = create_engine(settings)
    sessions = Sessions()
    bare = guarded(create_app(settings.model_copy(update={"ui": False}), engine), settings, sessions)
    server = Server(bare, listening, keep_alive=settings.keep_alive)
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


def choices(settings: Settings) -> list[ModelChoice]:
    return [
        ModelChoice(
            name, modality, settings.drafter, settings.codec, settings.method, settings.device, settings.dtype
        )
        for name, modality in settings.chosen
    ]  # fmt: skip


def announce(settings: Settings, listening: socket.socket, publish: Publish) -> None:
    if not settings.loopback and not settings.key:
        publish(f"warning: {settings.host} is reached by others and no key is needed")
    publish(f"listening on {address(settings, listening)}")


async def drain(engine: Engine, server: Server, seconds: float, signals: StopSignals, publish: Publish) -> None:
    """Finish what was accepted, its way through the sockets included, unless it takes too long or a signal ends it."""
    publish(f"{signals.name}: taking nothing new, finishing {len(engine.tickets)} requests")

    async def finished() -> None:
        await engine.drain(seconds)
        await server.all_sent()

    with suppress(TimeoutError):
        await asyncio.wait_for(unless(signals.end, finished()), seconds)
    await engine.drain(0)
    server.force_exit = signals.end.is_set()


async def unless(event: asyncio.Event, work: Awaitable[Any]) -> bool:
    """Await `work` until `event`, and cancel it then; return whether it was done. What it raises is raised here."""
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


def run(settings: Settings, listening: socket.socket, told: Publish) -> None:
    """Serve at `listening`, which listens, until a signal; told: takes lines for whoever started it."""
    sys.setswitchinterval(TURN)

    async def served() -> Engine:
        signals = StopSignals()
        signals.listen()
        return await serve(settings, listening, unfailing(told), signals)

    engine = asyncio.run(served())
    if engine.healthy:  # a pass or a model that was being loaded; nobody waits for it any more
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(0)
