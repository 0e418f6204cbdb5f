"""Shared parts of routes: access to the engine, and the refusals they document."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request

from polydraft.apps.server.api.recent import Recent
from polydraft.apps.server.api.schemas.common import ErrorBody
from polydraft.apps.server.engine.engine import ServerEngine
from polydraft.apps.server.engine.handle import RequestHandle
from polydraft.apps.server.settings import ServerSettings

REASONS = {
    400: "The request is not possible; the message says what is.", 401: "The key is missing or wrong.",
    403: "The host is not this server's.", 404: "No such model, or request.", 413: "The body is too large.",
    415: "The file is no sound.",
    429: "The queue is full; Retry-After says when to ask again.", 500: "The computation failed.",
    503: "The server is not ready, or about to stop.", 504: "The request took longer than it may.",
}  # fmt: skip
WAIT: dict[str, Any] = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}


def refusals(*more: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses to document: those of every request, and `more`."""
    return {
        status: {"model": ErrorBody, "description": REASONS[status]} | ({"headers": WAIT} if status == 429 else {})
        for status in (400, 401, 403, *more)
    }


EVENTS: dict[str, Any] = {  # server-sent events, one by one
    "schema": {
        "type": "object", "required": ["data"],
        "properties": {
            "event": {"type": "string"},
            "data": {"type": "string", "description": "A JSON object, or [DONE]."},
        },
    }
}  # fmt: skip

WORK = refusals(404, 413, 429, 500, 503, 504)  # of requests that decode


def engine_of(request: Request) -> ServerEngine:
    return request.app.state.engine


def settings_of(request: Request) -> ServerSettings:
    return request.app.state.settings


TheEngine = Annotated[ServerEngine, Depends(engine_of)]
TheSettings = Annotated[ServerSettings, Depends(settings_of)]


def track_request(request: Request, handle: RequestHandle, seed: int) -> RequestHandle:
    """Register a request handle for logs and `/v1/requests`, and return it."""
    recent: Recent = request.app.state.recent
    recent.follow(request.state.request_id, seed, handle)
    request.state.log_fields = {"model": handle.model, "ticket": handle.id}
    return handle


def seed_headers(seed: int, handle: RequestHandle) -> dict[str, str]:
    """Return the headers of responses that are no JSON."""
    return {"x-polydraft-seed": str(seed), "x-polydraft-method": handle.method, "x-polydraft-model": handle.model}
