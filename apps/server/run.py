"""A server process from start to end: load, listen, and on SIGTERM finish what was accepted.

Nobody is answered until the models are loaded and warm.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from polydraft.apps.server.api.app import create_app, create_engine, guarded
from polydraft.apps.server.engine.engine import Engine, ModelChoice
from polydraft.apps.server.listening import address
from polydraft.apps.server.settings import Settings

log = logging.getLogger("polydraft.server")
Told = Callable[[str], None]
LAST_WORDS = 5  # seconds for answers to leave the sockets, after all work is done
BACKLOG = 2048
TURN = 0.0005  # seconds after which the compute thread lets the event loop in; Python's own 0.005 delays every answer


class Server(uvicorn.Server):
    """Signals are handled here, not by uvicorn, which would refuse connections at once."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Settings, listening: socket.socket, told: Told) -> None:
    """Until a signal; told: lines for whoever started it."""
    engine = create_engine(settings)
    try:
        await engine.start(choices(settings), told, settings.threads)
        if not settings.loopback and not settings.key:
            told(f"warning: {settings.host} is reached by others and no key is needed")
        app = create_app(settings, engine)
        config = uvicorn.Config(
            guarded(app, settings), log_config=None, access_log=False, server_header=False, backlog=BACKLOG,
            timeout_graceful_shutdown=LAST_WORDS, ws="none" if not settings.ui else "auto",
        )  # fmt: skip
        server = Server(config)
        stopping = asyncio.ensure_future(stopped(engine, server, settings.drain, told))
        listened = asyncio.ensure_future(announce(server, address(settings, listening), told))
        try:
            await server.serve(sockets=[listening])
        finally:
            stopping.cancel()
            listened.cancel()
    finally:
        listening.close()
        await engine.stop()


def choices(settings: Settings) -> list[ModelChoice]:
    return [
        ModelChoice(
            name, modality, settings.drafter, settings.codec, settings.method, settings.device, settings.dtype
        )
        for name, modality in settings.chosen
    ]  # fmt: skip


async def announce(server: Server, where: str, told: Told) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    told(f"listening on {where}")


async def stopped(engine: Engine, server: Server, drain: float, told: Told) -> None:
    """Wait for SIGTERM or SIGINT, then for what was accepted; a second signal ends the waiting."""
    signals: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, signals.put_nowait, each.name)
    name = await signals.get()
    told(f"{name}: taking nothing new, finishing {len(engine.tickets)} requests")
    drained, again = asyncio.ensure_future(engine.drain(drain)), asyncio.ensure_future(signals.get())
    await asyncio.wait({drained, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if not drained.done():
        drained.cancel()
        await engine.drain(0)
    server.should_exit = True


def run(settings: Settings, listening: socket.socket, told: Told) -> None:
    """Serve at `listening`, which is bound, until told to stop."""
    sys.setswitchinterval(TURN)
    asyncio.run(serve(settings, listening, told))
