"""Errors as OpenAI's clients know them: `{"error": {message, type, param, code}}`, whatever went wrong and wherever."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from polydraft.apps.server.api.schemas.common import ErrorBody, Problem
from polydraft.apps.server.errors import (
    Cancelled,
    ComputeFailed,
    DeadlinePassed,
    Draining,
    Loading,
    ReplicaLost,
    TooBusy,
    TooLong,
    UnsupportedMedia,
)
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.errors import (
    OutOfMemory,
    PolydraftError,
    SystemRefusal,
    UnknownMethod,
    UnknownModel,
    UnsupportedMethod,
    WeightsError,
)

log: logging.Logger = logging.getLogger("polydraft.server")

KINDS: dict[int, str] = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "invalid_request_error",
    405: "invalid_request_error", 413: "invalid_request_error", 415: "invalid_request_error", 429: "rate_limit_error",
}  # fmt: skip
OURS: Sequence[tuple[type[Exception], int, str]] = (
    (TooBusy, 429, "queue_full"), (Draining, 503, "draining"), (Loading, 503, "loading"), (Cancelled, 503, "cancelled"),
    (ReplicaLost, 503, "replica_lost"), (DeadlinePassed, 504, "deadline_passed"),
    (UnsupportedMedia, 415, "unsupported_media_type"), (TooLong, 413, "too_long"),
    (ComputeFailed, 500, "computation_failed"), (OutOfMemory, 503, "out_of_memory"),
    (SystemRefusal, 500, "system_refusal"),
    (WeightsError, 500, "weights"), (UnknownModel, 404, "model_not_found"), (UnknownMethod, 400, "unknown_method"),
    (UnsupportedMethod, 400, "unsupported_method"), (PolydraftError, 400, "invalid_value"),
)  # fmt: skip
MEANT = {
    ("", "extra_forbidden"): "this field is unknown here; leave it out",
    ("", "missing"): "this field is missing; give it",
    ("url", "string_pattern_mismatch"): (
        "pictures are sent as data:image/png;base64,… (png, jpeg, webp or gif); none is fetched from elsewhere"
    ),
    ("size", "string_pattern_mismatch"): "a size is auto or, for example, 128x128",
    ("prime", "string_pattern_mismatch"): "a picture is sent as data:image/png;base64,…",
    ("messages", "union_tag_invalid"): "a role is system, developer, user or assistant; no other is known here",
}  # fmt: skip
PARAMS = {"unknown_method": "method", "unsupported_method": "method", "model_not_found": "model",
          "unsupported_media_type": "file", "too_long": "file"}  # fmt: skip


def body(status: int, message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    kind = KINDS.get(status, "server_error")
    return ErrorBody(error=Problem(message=message, type=kind, param=param, code=code)).model_dump()


def answer(
    status: int, message: str, code: str | None = None, param: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(body(status, message, code, param), status, headers)


def described(error: BaseException) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Return status, body and headers of an error response."""
    for kind, status, code in OURS:
        if isinstance(error, kind):
            headers = {"retry-after": str(error.retry_after)} if isinstance(error, TooBusy) else {}
            return status, body(status, str(error), code, PARAMS.get(code)), headers
    log.error("unexpected: %s: %s", type(error).__name__, error, exc_info=error)
    return 500, body(500, "the server failed unexpectedly; its log says more.", "internal_error"), {}


def invalid(error: RequestValidationError, known: Sequence[str] = ()) -> JSONResponse:
    """Return the response for the first invalid field of a request, without its value.

    Args:
        error: pydantic's errors.
        known: names of the fields that the request may have.
    """
    # of a union every branch complains; the one that got furthest is the one that was meant
    first = max(error.errors(), key=lambda each: len(each["loc"]))
    where, *steps = first["loc"]
    place = place_of(steps, error.body, first["type"] == "missing") if where == "body" else list(map(str, steps))
    if first["type"] == "json_invalid":
        return answer(400, "the body is not JSON; send an object, as application/json.", "invalid_json")
    if not place:
        return answer(400, "the body is not a JSON object; send one, as application/json.", "invalid_json")
    name = f"{'.'.join(place):.200}"
    field = next((step for step in reversed(place) if not step.isdecimal()), "")
    message = MEANT.get((field, first["type"])) or MEANT.get(("", first["type"])) or first["msg"]
    if first["type"] == "extra_forbidden" and len(place) == 1:
        message = message.replace(" here", f" here{did_you_mean(field, known)}", 1)
    return answer(400, f"{name}: {message:.400}.", first["type"], name)


def known_fields(request: Request) -> list[str]:
    """Return the fields that the body of a request to this route can have."""
    dependant = getattr(request.scope.get("route"), "dependant", None)
    models = (parameter.field_info.annotation for parameter in getattr(dependant, "body_params", ()))
    return [name for model in models for name in getattr(model, "model_fields", ())]


def place_of(steps: Sequence[str | int], sent: Any, missing: bool) -> list[str]:
    """Return the path of a request field from the steps of a pydantic error location.

    Steps that name a branch of a union do not exist in the request and are dropped.

    Args:
        steps: location of the error, as pydantic reports it.
        sent: the request body.
        missing: whether the last step is a field that is absent.
    """
    place = []
    for number, step in enumerate(steps, 1):
        there = isinstance(sent, dict) and step in sent
        if there or (isinstance(sent, list) and isinstance(step, int) and 0 <= step < len(sent)):
            sent = sent[step]
        elif not (missing and number == len(steps)):
            continue
        place.append(str(step))
    return place


def install(app: FastAPI) -> None:
    """Register handlers so that every error of `app` has the error body."""

    async def validation(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return invalid(error, known_fields(request))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        status = 400 if error.status_code == 422 else error.status_code
        sentences = {
            400: "the body cannot be read; send a JSON object, as application/json.",
            404: f"there is no {request.url.path:.200} here; /openapi.json lists what there is.",
            405: f"{request.method:.20} is not possible here; the header Allow says what is.",
        }
        message, code = sentences.get(status, f"{error.detail!s:.300}."), "invalid_json" if status == 400 else None
        return answer(status, message, code, None, dict(error.headers or {}))

    async def anything(request: Request, error: Exception) -> JSONResponse:
        status, content, headers = described(error)
        return JSONResponse(content, status, headers)

    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(PolydraftError, anything)
    app.add_exception_handler(Exception, anything)
