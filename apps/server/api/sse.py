"""Server-sent events, and waiting for work whose client may leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from polydraft.apps.server.api import envelope
from polydraft.apps.server.engine.ticket import Ticket
from polydraft.apps.server.errors import Cancelled

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def event(value: BaseModel | dict[str, Any], name: str | None = None) -> bytes:
    """One event; name: its type, where readers go by it."""
    data = value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value)
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


def stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    """Events as an answer; what goes wrong on the way is the last one."""

    async def safe() -> AsyncIterator[bytes]:
        try:
            async for piece in events:
                yield piece
        except Exception as error:  # noqa: BLE001 - told to the client, whose answer has already begun
            yield event(envelope.described(error)[1])

    return StreamingResponse(safe(), media_type="text/event-stream", headers=HEADERS)


async def first(ticket: Ticket, request: Request) -> Any:
    """The first news, so that errors come before an answer begins; None where there is none. The client may leave."""
    return await unless_left(request, ticket, anext(ticket, None))


async def whole(ticket: Ticket, request: Request) -> Any:
    """The result, unless the client leaves first; then the request is cancelled."""
    return await unless_left(request, ticket, ticket.result())


async def unless_left(request: Request, ticket: Ticket, work: Any) -> Any:
    """What `work` comes to; cancels the ticket as soon as the client is gone."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Cancelled("the client left.")
        return working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            ticket.cancel()


async def left(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
