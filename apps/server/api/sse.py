"""Server-sent events, and awaiting results of clients that may disconnect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from polydraft.apps.server.api import envelope
from polydraft.apps.server.engine.handle import RequestHandle
from polydraft.apps.server.errors import Cancelled

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def event(value: BaseModel | dict[str, Any], name: str | None = None) -> bytes:
    """Return one server-sent event; `name` is its type, where clients need one."""
    data = value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value)
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


def stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    """Return a streaming response of events; an error on the way is the last event."""

    async def safe() -> AsyncIterator[bytes]:
        try:
            async for piece in events:
                yield piece
        except Exception as error:  # noqa: BLE001 - sent to the client, whose response has already begun
            yield event(envelope.described(error)[1])

    return StreamingResponse(safe(), media_type="text/event-stream", headers=HEADERS)


async def first_progress(handle: RequestHandle, request: Request) -> Any:
    """Return the first progress event or None, so that errors are raised before the response starts."""
    return await cancel_on_disconnect(request, handle, anext(handle, None))


async def await_result(handle: RequestHandle, request: Request) -> Any:
    """Return the result; the request is cancelled if the client disconnects first."""
    return await cancel_on_disconnect(request, handle, handle.result())


async def cancel_on_disconnect(request: Request, handle: RequestHandle, work: Any) -> Any:
    """Await `work`, and cancel the request as soon as the client disconnects."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Cancelled("the client left.")
        return working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            handle.cancel()


async def wait_for_disconnect(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
