"""Paths as the application knows them, independent of a prefix that a proxy adds.

    app = RootPath(Guards(...), "/polydraft")      # behind a proxy that shows the service at /polydraft

A proxy may strip the prefix or leave it. As ASGI demands, the application receives both: `root_path`, and a `path` that
includes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True)
class RootPath:
    """ASGI middleware that sets the prefix under which a proxy shows `app`."""

    app: ASGIApp
    prefix: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            path = self.prefix + without_prefix(scope["path"], self.prefix)
            scope = {**scope, "root_path": self.prefix, "path": path, "raw_path": path.encode()}
        await self.app(scope, receive, send)


def route_path(scope: Scope) -> str:
    """Return the path of a request without the prefix that a proxy puts before it."""
    return without_prefix(scope["path"], scope.get("root_path", ""))


def without_prefix(path: str, prefix: str) -> str:
    """Return `path` below `prefix`; as it is where it lies elsewhere."""
    return path[len(prefix) :] if prefix and f"{path}/".startswith(f"{prefix}/") else path


@dataclass(frozen=True)
class HeadAsGet:
    """Answer HEAD as GET without its body."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        ended = False

        async def send_head(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.start":
                await send(message)
            elif not ended:
                ended = True
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self.app({**scope, "method": "GET"}, receive, send_head)
