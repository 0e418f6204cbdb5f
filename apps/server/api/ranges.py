"""`Range` headers: a single byte range is passed on, any other header is removed.

A server may ignore the header (RFC 9110, section 14.2) and must ignore one it cannot parse; Gradio's file responses
fail on those, and on several ranges at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

ONE_RANGE = re.compile(rb"bytes=([0-9]{1,18}-[0-9]{0,18}|-[0-9]{1,18})")


@dataclass(frozen=True)
class IgnoreUnusableRanges:
    """ASGI middleware that removes `Range` headers which are not one range of bytes."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = [pair for pair in scope["headers"] if pair[0].lower() != b"range" or is_one_range(pair[1])]
            scope = {**scope, "headers": headers}
        await self.app(scope, receive, send)


def is_one_range(value: bytes) -> bool:
    """Return whether a `Range` header requests exactly one byte range whose end is not before its start."""
    if not ONE_RANGE.fullmatch(value.strip()):
        return False
    start, _, end = value.strip().removeprefix(b"bytes=").partition(b"-")
    return not (start and end) or int(start) <= int(end)
