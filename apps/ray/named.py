"""One name for a request: Serve's proxy gives each an id and tells the client, so it is the one that is used here."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
LONGEST = 64  # of an id that a client chose


@dataclass(frozen=True)
class Named:
    """`app`, told of the proxy's ids; its own header is left out, since the proxy writes one."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope.setdefault("state", {})["request_id"] = Headers(scope=scope).get(HEADER, "")[:LONGEST]

        async def unnamed(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)[HEADER]
            await send(message)

        await self.app(scope, receive, unnamed)
