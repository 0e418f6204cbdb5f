"""Request ids of Serve's proxy, which the front adopts, and the count of open requests for a shutdown."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
LONGEST = 64  # of an id that a client chose


@dataclass
class Named:
    """ASGI middleware that takes the proxy's request ids and drops the application's id header: the proxy sets one.

    `open` is the number of requests whose responses have not ended.
    """

    app: ASGIApp
    open: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope.setdefault("state", {})["request_id"] = Headers(scope=scope).get(HEADER, "")[:LONGEST]

        async def unnamed(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)[HEADER]
            await send(message)

        self.open += 1
        try:
            await self.app(scope, receive, unnamed)
        finally:
            self.open -= 1
