"""The page by itself: models, an engine and a web server in one process, until it is stopped.

asyncio.run(serve_page([ModelChoice("tiny-image")], "127.0.0.1", 7860, told=print))
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence

import uvicorn
from fastapi import FastAPI
from fastapi.responses import RedirectResponse

from polydraft.apps.server.engine import Engine, ModelChoice
from polydraft.apps.ui.page import mount
from polydraft.core.errors import InvalidArgument

LAST_WORDS = 3  # seconds that open connections get when the page stops


async def serve_page(
    choices: Sequence[ModelChoice], host: str, port: int, told: Callable[[str], None],
    ready: Callable[[str], None] = lambda address: None,
) -> None:  # fmt: skip
    """Load, serve, stop with Ctrl-C. told: lines for whoever waits; ready: the page's address, once it answers."""
    listening = bound(host, port)
    engine = Engine()
    try:
        await engine.start(choices, told)
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        app.add_api_route("/", lambda: RedirectResponse("ui/"), include_in_schema=False)
        mount(app, engine)
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=LAST_WORDS, server_header=False)
        )
        name = f"[{host}]" if ":" in host else host
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.02)
        if server.started:
            ready(f"http://{name}:{listening.getsockname()[1]}/ui/")
        await serving
    finally:
        listening.close()
        if engine.healthy:
            await engine.stop()


def bound(host: str, port: int) -> socket.socket:
    """A socket at the address, taken before models are loaded; raises InvalidArgument where it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidArgument(
            f"{host}:{port} cannot be listened on ({reason.lower()}); choose another --port, 0 takes a free one."
        ) from error
    return listening


def loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
