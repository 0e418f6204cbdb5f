"""Sessions of browsers: a signed random value in a cookie, instead of the key.

The value is worth nothing to another server and nothing after a restart, since it is signed with a secret that only
this process knows. Cookies do not know ports, so the name holds the port and the signature covers it.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import cookie_parser

LIFETIME = 7 * 86_400  # seconds


def new_secret() -> bytes:
    """Return a random signing key."""
    return secrets.token_bytes(32)


@dataclass(frozen=True)
class Sessions:
    """Issue and check session cookies."""

    secret: bytes = field(default_factory=new_secret, repr=False)  # signs the cookies of this process
    clock: Callable[[], float] = time.time  # seconds since the epoch

    def issue(self, port: int) -> tuple[str, str]:
        """Return the id of a new session and the cookie's value that proves it."""
        id, expires = secrets.token_urlsafe(16), int(self.clock()) + LIFETIME
        return id, f"{id}.{expires}.{self.signature(port, id, expires)}"

    def session_id(self, cookies: str, port: int) -> str:
        """Return the session that a Cookie header proves, or "" where it proves none."""
        id, _, rest = cookie_parser(cookies).get(cookie_name(port), "").partition(".")
        expires, _, signature = rest.partition(".")
        if not (id and expires.isdecimal() and len(expires) < 16 and int(expires) > self.clock()):
            return ""
        expected = self.signature(port, id, int(expires))
        return id if hmac.compare_digest(signature.encode(), expected.encode()) else ""

    def signature(self, port: int, id: str, expires: int) -> str:
        """Return the HMAC-SHA256 of a session of this port."""
        return hmac.digest(self.secret, f"{port}.{id}.{expires}".encode(), "sha256").hex()


def cookie_name(port: int) -> str:
    """Return the cookie's name for a server that listens on `port`."""
    return f"polydraft_session_{port}"


def set_cookie(value: str, port: int, path: str, secure: bool) -> str:
    """Return the Set-Cookie header of a session. secure: whether the page came over https."""
    attributes = f"HttpOnly; Max-Age={LIFETIME}; Path={path or '/'}; SameSite=strict{'; Secure' if secure else ''}"
    return f"{cookie_name(port)}={value}; {attributes}"
