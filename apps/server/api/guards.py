"""What stands before every request: an id, whose name it was sent to, a key, and how large it may be.

`Guards` wraps the whole application, pages and files mounted in it included, as plain ASGI, so that streams and
disconnects pass through untouched.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polydraft.apps.server.api import envelope
from polydraft.apps.server.api.paths import route_path

log = logging.getLogger("polydraft.access")

OPEN = frozenset({"/health", "/ready"})  # paths that need no key
PROBES = OPEN | {"/metrics"}  # paths that are asked by address, under whatever name
COOKIE = "polydraft_key"
PAGE = "/ui"


class TooLarge(Exception):
    """More bytes came than a body may have."""


@dataclass(frozen=True)
class Guards:
    """key: what callers must show; empty: nothing. hosts: names this server answers to; empty: any. most: bytes of a
    body."""

    app: ASGIApp
    key: str = ""
    hosts: Collection[str] = ()
    most: int = 32 * 2**20

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            allowed = scope["type"] != "websocket" or self.known(Headers(scope=scope))
            await (self.app(scope, receive, send) if allowed else refuse_socket(send))
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        id = state["request_id"] = state.get("request_id") or f"req_{secrets.token_hex(8)}"
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
                MutableHeaders(scope=message)["x-request-id"] = id
            await send(message)

        try:
            if not (route_path(scope) in PROBES or self.at_home(headers)):
                await envelope.answer(403, "this server is not known by that name.", "unknown_host")(
                    scope, receive, marked
                )
            elif self.key and (page := self.entered(scope)):
                await self.let_in(page)(scope, receive, marked)
            elif self.key and route_path(scope) not in OPEN and not self.known(headers):
                await envelope.answer(
                    401, "the key is missing or wrong; send it as Authorization: Bearer KEY.", "invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )(scope, receive, marked)  # fmt: skip
            elif (length := headers.get("content-length", "0")).isdecimal() and int(length) > self.most:
                await self.too_large()(scope, receive, marked)
            else:
                await self.app(scope, counted, marked)
        except TooLarge:
            pass  # said below
        finally:
            if over and not started:
                over = False
                await self.too_large()(scope, receive, marked)
            spent = round(time.monotonic() - begun, 4)
            told = {"id": id, "method": scope["method"], "path": scope["path"], "status": status, "seconds": spent}
            log.info("request", extra={"fields": told | scope["state"].get("told", {})})

    def too_large(self) -> ASGIApp:
        return envelope.answer(413, f"the body has more than {self.most} bytes; send less.", "body_too_large")

    def entered(self, scope: Scope) -> str:
        """The page that is opened with the key in its address, as browsers must, without it; empty where none is."""
        asked = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        if not route_path(scope).startswith(PAGE) or not same(asked.pop("key", [""])[0], self.key):
            return ""
        return scope["path"] + ("?" + urlencode(asked, doseq=True) if asked else "")

    def let_in(self, page: str) -> ASGIApp:
        """A cookie instead of the key in the address."""
        answer = RedirectResponse(page, 303)
        answer.set_cookie(COOKIE, self.key, httponly=True, samesite="strict")
        return answer

    def at_home(self, headers: Headers) -> bool:
        """Whether the request means this server; pages of other sites cannot fake that."""
        if not self.hosts:
            return True
        host = headers.get("host", "")
        name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
        return name.lower() in self.hosts

    def known(self, headers: Headers) -> bool:
        """Whether the key is shown, as a bearer token or as the cookie that pages get."""
        if not self.key:
            return True
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and same(shown.strip(), self.key):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and same(cookie.value, self.key)


def same(shown: str, key: str) -> bool:
    """In a time that does not tell how much of it was right."""
    return hmac.compare_digest(shown.encode(), key.encode())


async def refuse_socket(send: Send) -> None:
    await send({"type": "websocket.close", "code": 4401})
