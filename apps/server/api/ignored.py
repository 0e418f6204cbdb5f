"""Fields of requests that change nothing: named in a header of the answer, and each once in the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

log: logging.Logger = logging.getLogger("polydraft.server")

HEADER = "x-polydraft-ignored"
MOST_NAMES, LONGEST_NAME = 32, 80  # in a header; clients choose the names of extra keys
MOST_LOGGED = 500


class IgnoredFields:
    """Logs every ignored field of every path once."""

    def __init__(self) -> None:
        self.logged: set[tuple[str, str]] = set()

    def note(self, request: Request, names: Iterable[str]) -> None:
        """Keep the names for the answer's header, and log those that are new."""
        shown = [re.sub(r"[^A-Za-z0-9_.-]", "?", name)[:LONGEST_NAME] for name in names]
        request.state.ignored = shown[:MOST_NAMES]
        for name in shown:
            if len(self.logged) < MOST_LOGGED and (key := (request.url.path, name)) not in self.logged:
                self.logged.add(key)
                log.info("requests to %s set %s, which changes nothing here", *key)


def note_ignored(request: Request, names: Iterable[str]) -> None:
    """Name fields of a request that change nothing, in the header of its answer and in the log."""
    fields: IgnoredFields = request.app.state.ignored
    fields.note(request, names)


class NamingRoute(APIRoute):
    """Route whose responses list the request fields that were ignored."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def answer_with_ignored(request: Request) -> Response:
            response = await answer(request)
            if names := getattr(request.state, "ignored", ()):
                response.headers[HEADER] = ", ".join(names)
            return response

        return answer_with_ignored
