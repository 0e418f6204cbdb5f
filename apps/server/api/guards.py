"""What stands before every request: an id, whose name it was sent to, from which site, a key, and how large it may be.

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
from polydraft.apps.server.limits import LARGEST_BODY

log = logging.getLogger("polydraft.access")

OPEN = frozenset({"/health", "/ready"})  # paths that need no key
PROBES = OPEN | {"/metrics"}  # paths that are asked by address, under whatever name
PAGE = "/ui"
SECURITY_HEADERS = {  # of every answer that does not say otherwise
    "content-security-policy": "frame-ancestors 'none'", "x-frame-options": "DENY", "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin", "referrer-policy": "same-origin",
}  # fmt: skip


class TooLarge(Exception):
    """More bytes came than a body may have."""


@dataclass(frozen=True)
class Guards:
    """key: what callers must show; empty: nothing. hosts: names this server answers to; empty: any. most: bytes of a
    body. origins: of other sites whose pages may use the server."""

    app: ASGIApp
    key: str = ""
    hosts: Collection[str] = ()
    most: int = LARGEST_BODY
    origins: Collection[str] = ()
    sessions: Sessions = field(default_factory=Sessions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await (refuse_socket(send) if scope["type"] == "websocket" else self.app(scope, receive, send))
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        id = state["request_id"] = state.get("request_id") or f"req_{secrets.token_hex(8)}"
        cookie = self.begin_session(scope, headers)
        begun, status, received, over, started = time.monotonic(), 0, 0, False, False

        async def counted() -> Message:
            nonlocal received, over
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.most:
                over = True
                raise TooLarge
            return message

        async def marked(message: Message) -> None:
            nonlocal status, started
            if over and not started:
                return  # what the application makes of a body that broke off
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                said = MutableHeaders(scope=message)
                said["x-request-id"] = id
                for name, value in SECURITY_HEADERS.items():
                    said.setdefault(name, value)
                if cookie and status < 400:
                    said.append("set-cookie", cookie)
            await send(message)

        try:
            refused = self.answer_first(scope, headers)
            await (refused(scope, receive, marked) if refused else self.app(scope, counted, marked))
        except TooLarge:
            pass  # said below
        finally:
            if over and not started:
                over = False
                await self.too_large()(scope, receive, marked)
            spent = round(time.monotonic() - begun, 4)
            told = {"id": id, "method": scope["method"], "path": scope["path"], "status": status, "seconds": spent}
            log.info("request", extra={"fields": told | scope["state"].get("told", {})})

    def answer_first(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """Return what is answered instead of the application, or None where the request goes on to it."""
        path = route_path(scope)
        if not (path in PROBES or self.at_home(headers)):
            return envelope.answer(403, "this server is not known by that name.", "unknown_host")
        if is_refused(scope["method"], is_page(scope), headers, self.origins):
            return envelope.answer(
                403, "pages of other sites may not use this server; --cors-origin lets one in.", "cross_site"
            )
        if page := self.entered(scope):
            return RedirectResponse(page, 303, {"cache-control": "no-store"})
        if self.key and path not in OPEN and not (scope["state"]["has_cookie"] or self.known(headers)):
            return envelope.answer(
                401, "the key is missing or wrong; send it as Authorization: Bearer KEY.", "invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )  # fmt: skip
        if (length := headers.get("content-length", "0")).isdecimal() and int(length) > self.most:
            return self.too_large()
        return None

    def too_large(self) -> ASGIApp:
        return envelope.answer(413, f"the body has more than {self.most} bytes; send less.", "body_too_large")

    def begin_session(self, scope: Scope, headers: Headers) -> str:
        """Note whose request it is in `state`; return the cookie to set where a browser opens the page without one.

        `session` is the cookie's, or the address that the request comes from; `has_cookie` says which. A server with a
        key gives cookies for the key alone.
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
        """Return the page's address without the key that it is opened with, as browsers must; "" where none is."""
        asked = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        shown = asked.pop("key", None)
        if shown is None or scope["method"] not in ("GET", "HEAD") or not is_page(scope):
            return ""
        if self.key and not same(shown[0], self.key):
            return ""
        return scope["path"] + ("?" + urlencode(asked, doseq=True) if asked else "")

    def at_home(self, headers: Headers) -> bool:
        """Whether the request means this server; pages of other sites cannot fake that."""
        if not self.hosts:
            return True
        host = headers.get("host", "")
        name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
        return name.lower() in self.hosts

    def known(self, headers: Headers) -> bool:
        """Return whether the key is shown, as a bearer token."""
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and same(shown.strip(), self.key)


def is_page(scope: Scope) -> bool:
    """Return whether the path belongs to the page."""
    return f"{route_path(scope)}/".startswith(f"{PAGE}/")


def same(shown: str, key: str) -> bool:
    """In a time that does not tell how much of it was right."""
    return hmac.compare_digest(shown.encode(), key.encode())


async def refuse_socket(send: Send) -> None:
    await send({"type": "websocket.close", "code": 4401})
