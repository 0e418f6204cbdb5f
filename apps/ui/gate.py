"""The routes of Gradio that the page uses, and no other.

Gradio serves more than the page needs: it fetches URLs (`file=https://…`), relays to other hosts (`proxy=…`), saves
states of pages, runs functions of components, edits its own source and shows monitoring. Whatever is not in `ROUTES` is
a 404 before Gradio sees it. What its own answers say about other origins is left out; that is the server's to say.
"""

from __future__ import annotations

import re
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

READ = ("GET", "HEAD")
ROUTES = tuple(
    (methods, re.compile(pattern))
    for methods, pattern in (
        (READ, r"/?"),
        (READ, r"/(config|theme\.css)"),
        (READ, r"/(assets|static)(/[\w-][\w.-]*)+"),
        # what the page's script and Gradio's Python client ask for
        (READ, r"/gradio_api/(info|queue/data|startup-events)"),
        (READ, r"/gradio_api/heartbeat/\w+"),
        (("POST",), r"/gradio_api/(queue/join|cancel|reset|run/\w+)"),
        # named endpoints: post, then read what comes of it
        (("POST",), r"/gradio_api/call/\w+"),
        (READ, r"/gradio_api/call/\w+/\w+"),
    )
)
FILE = "/gradio_api/file="
# the page asks no other host for anything; a browser sees to it, and shows it in no frame
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)


class Gate:
    """Gradio's application behind its allow-list.

    Args:
        app: Gradio's application.
        folder: the only folder whose files are served by name.
    """

    def __init__(self, app: ASGIApp, folder: Path) -> None:
        self.app: ASGIApp = app
        self.folder: Path = folder.resolve()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self.is_open(scope["method"], self.route(scope)):
            await refuse(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name in [name for name in headers if name.startswith("access-control-")]:
                    del headers[name]
                headers["content-security-policy"] = POLICY
            await send(message)

        await self.app(scope, receive, guarded)

    def route(self, scope: Scope) -> str:
        """Return the path within Gradio's application."""
        return str(scope["path"]).removeprefix(scope.get("root_path", ""))

    def is_open(self, method: str, route: str) -> bool:
        """Return whether the page uses this."""
        if route.startswith(FILE):
            return method in READ and is_inside(route.removeprefix(FILE), self.folder)
        return any(method in methods and pattern.fullmatch(route) for methods, pattern in ROUTES)


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer that there is nothing here."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 4404})
    else:
        await PlainTextResponse("There is nothing here.", 404)(scope, receive, send)


def is_inside(name: str, folder: Path) -> bool:
    """Return whether `name` is the absolute path of a file in `folder`, links and dots followed."""
    try:
        file = Path(name)
        return file.is_absolute() and file.resolve().is_relative_to(folder)
    except (OSError, ValueError):  # too long, or no path at all
        return False
