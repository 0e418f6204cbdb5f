"""Checks before every request: request id, host name, origin, API key and body size.

`Guards` wraps the whole application, pages and files mounted in it included, as plain ASGI, so that streams and
disconnects pass through untouched.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polydraft.apps.server.api import envelope
from polydraft.apps.server.api.origins import is_navigation, is_refused
from polydraft.apps.server.api.paths import route_path
from polydraft.apps.server.api.sessions import Sessions, set_cookie
from polydraft.apps.server.limits import LARGEST_BODY, LARGEST_UPLOAD

log: logging.Logger = logging.getLogger("polydraft.access")

OPEN = frozenset({"/health", "/ready"})  # paths that need no key
PROBES = OPEN | {"/metrics"}  # paths that probes request by address, so any host name is accepted
PAGE = "/ui"
UPLOADS = frozenset(  # paths that take files
    {"/v1/audio/transcriptions", "/v1/audio/translations", f"{PAGE}/gradio_api/upload"}
)
OTHER_FIELDS = 2**20  # bytes of a form beside its file
SECURITY_HEADERS = {  # defaults of every response
    "content-security-policy": "frame-ancestors 'none'", "x-frame-options": "DENY", "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin", "referrer-policy": "same-origin",
}  # fmt: skip


class TooLarge(Exception):
    """More bytes came than a body may have."""


@dataclass(frozen=True)
class Guards:
    """Middleware that checks host, origin, key, session and body size of every request."""

    app: ASGIApp
    key: str = ""  # required from clients; empty: none
    hosts: Collection[str] = ()  # names that this server answers to; empty: any
    most: int = LARGEST_BODY  # bytes of a body
    most_upload: int = LARGEST_UPLOAD  # bytes of a file
    origins: Collection[str] = ()  # other sites whose pages may use the server
    sessions: Sessions = field(default_factory=Sessions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await (refuse_socket(send) if scope["type"] == "websocket" else self.app(scope, receive, send))
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        id = state["request_id"] = state.get("request_id") or f"req_{secrets.token_hex(8)}"
        cookie = self.begin_session(scope, headers)
        most = self.limit(scope)
        begun, status, received, over, started = time.monotonic(), 0, 0, False, False

        async def receive_counted() -> Message:
            nonlocal received, over
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                over = True
                raise TooLarge
            return message

        async def send_marked(message: Message) -> None:
            nonlocal status, started
            if over and not started:
                return  # the application's response to a truncated body
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                response_headers = MutableHeaders(scope=message)
                response_headers["x-request-id"] = id
                for name, value in SECURITY_HEADERS.items():
                    response_headers.setdefault(name, value)
                if cookie and status < 400:
                    response_headers.append("set-cookie", cookie)
            await send(message)

        try:
            refused = self.answer_first(scope, headers)
            await (refused(scope, receive, send_marked) if refused else self.app(scope, receive_counted, send_marked))
        except TooLarge:
            pass  # answered below
        finally:
            if over and not started:
                over = False
                await self.too_large(scope)(scope, receive, send_marked)
            spent = round(time.monotonic() - begun, 4)
            request_fields = {
                "id": id,
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "seconds": spent,
            }
            log.info("request", extra={"fields": request_fields | scope["state"].get("log_fields", {})})

    def answer_first(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """Return the response that replaces the application's, or None if the request is passed on."""
        path = route_path(scope)
        if not (path in PROBES or self.is_host_allowed(headers)):
            return envelope.answer(403, "this server is not known by that name.", "unknown_host")
        if is_refused(scope["method"], is_page(scope), headers, self.origins):
            return envelope.answer(
                403, "pages of other sites may not use this server; --cors-origin lets one in.", "cross_site"
            )
        if page := self.entered(scope):
            return RedirectResponse(page, 303, {"cache-control": "no-store"})
        if self.key and path not in OPEN and not (scope["state"]["has_cookie"] or self.has_valid_key(headers)):
            return envelope.answer(
                401, "the key is missing or wrong; send it as Authorization: Bearer KEY.", "invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )  # fmt: skip
        if (length := headers.get("content-length", "0")).isdecimal() and int(length) > self.limit(scope):
            return self.too_large(scope)
        return None

    def limit(self, scope: Scope) -> int:
        """Return the bytes that the body of a request may have."""
        return self.most_upload + OTHER_FIELDS if route_path(scope) in UPLOADS else self.most

    def too_large(self, scope: Scope) -> ASGIApp:
        """Return the response to a body of too many bytes."""
        return envelope.answer(413, f"the body has more than {self.limit(scope)} bytes; send less.", "body_too_large")

    def begin_session(self, scope: Scope, headers: Headers) -> str:
        """Store the session of a request in `state`; return the cookie to set, or "".

        A cookie is set when a browser opens the page without one. `state["session"]` is the cookie's session, or the
        client address without a cookie; `state["has_cookie"]` tells them apart. A server with a key sets cookies only
        for requests that send it.
        """
        state, port = scope["state"], (scope.get("server") or ("", 0))[1] or 0
        id = self.sessions.session_id(headers.get("cookie", ""), port)
        state["session"], state["has_cookie"] = id or (scope.get("client") or ("",))[0], bool(id)
        opens = is_page(scope) and scope["method"] == "GET" and is_navigation(headers)
        if id or not opens or not (self.entered(scope) if self.key else route_path(scope).rstrip("/") == PAGE):
            return ""
        state["session"], value = self.sessions.issue(port)
        return set_cookie(value, port, scope.get("root_path", ""), scope.get("scheme") == "https")

    def entered(self, scope: Scope) -> str:
        """Return the page's address without its `key` parameter, for a redirect; "" if there is nothing to remove."""
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        shown = query.pop("key", None)
        if shown is None or scope["method"] not in ("GET", "HEAD") or not is_page(scope):
            return ""
        if self.key and not same(shown[0], self.key):
            return ""
        return scope["path"] + ("?" + urlencode(query, doseq=True) if query else "")

    def is_host_allowed(self, headers: Headers) -> bool:
        """Check whether the request names a host of this server, which pages of other sites cannot fake."""
        if not self.hosts:
            return True
        host = headers.get("host", "")
        name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
        return name.lower() in self.hosts

    def has_valid_key(self, headers: Headers) -> bool:
        """Return whether the key is shown, as a bearer token."""
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and same(shown.strip(), self.key)


def is_page(scope: Scope) -> bool:
    """Return whether the path belongs to the page."""
    return f"{route_path(scope)}/".startswith(f"{PAGE}/")


def same(shown: str, key: str) -> bool:
    """Compare two keys in constant time."""
    return hmac.compare_digest(shown.encode(), key.encode())


async def refuse_socket(send: Send) -> None:
    await send({"type": "websocket.close", "code": 4401})
