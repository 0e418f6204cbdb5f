"""A live page on a free loopback port, in a thread of this process, and a browser that may look at nothing else."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import pytest

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before anything imports Gradio

PATIENCE = 240  # seconds for anything on a slow machine that others use too
STOP = 40  # seconds for the page to end, of which its compute thread may take thirty

KEY = "sesame"


@dataclass
class Live:
    """The page's address, the same page behind KEY, and the engine behind both with the loop it lives in."""

    address: str
    keyed: str
    engine: Any
    loop: asyncio.AbstractEventLoop

    def compute(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Something on the compute thread, where it cannot meet a pass."""
        asked = self.engine.compute(function, *arguments, **options)
        return asyncio.run_coroutine_threadsafe(asked, self.loop).result(PATIENCE)

    def cancelled(self) -> int:
        """Requests that ended so, so far."""
        return sum(count for (_, state), count in self.engine.meter.outcomes.items() if state == "cancelled")


def until(what: Callable[[], bool], why: str) -> None:
    """Wait for it, but not forever."""
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, f"after {PATIENCE} s still not so: {why}"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    pytest.importorskip("gradio", reason="Gradio is not installed: pip install 'polydraft[ui]'")
    import uvicorn

    from polydraft.apps.server.api.app import create_app, create_engine, guarded
    from polydraft.apps.server.run import choices
    from polydraft.apps.server.settings import settings

    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    up, servers, found = threading.Event(), [], {}

    async def serve() -> None:
        ways = [settings({"port": 0}), settings({"port": 0, "api_key": KEY})]
        engine = create_engine(ways[0])
        await engine.start(choices(ways[0]))
        for chosen in ways:
            app = guarded(create_app(chosen, engine), chosen)
            servers.append(uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)))
        found.update(engine=engine, loop=asyncio.get_running_loop())
        serving = asyncio.gather(*(server.serve([at]) for server, at in zip(servers, listening, strict=True)))
        while not all(server.started for server in servers) and not serving.done():
            await asyncio.sleep(0.02)
        up.set()
        await serving
        await engine.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert up.wait(4 * PATIENCE), "the page did not start"
    yield Live(*(f"http://127.0.0.1:{at.getsockname()[1]}/ui/" for at in listening), **found)
    for server in servers:
        server.should_exit = True
    thread.join(STOP)
    for at in listening:
        at.close()
    assert not thread.is_alive(), f"the page did not stop within {STOP} s"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Playwright's event loop counts as running in this thread until it ends: no longer than the module needs it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed")
    from playwright.sync_api import sync_playwright

    options = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required", "--mute-audio"]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=options, timeout=1000 * PATIENCE)
        yield running
        running.close()


@dataclass
class Watched:
    """What went wrong in a browser, as it was told."""

    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)


@pytest.fixture
def opened(live: Live, browser: Any) -> Iterator[Callable[..., Any]]:
    """Open the page; at the end no error may have been told, and no other host asked."""
    watched, contexts = Watched(), []
    own = (live.address.removesuffix("ui/"), live.keyed.removesuffix("ui/"), "data:", "blob:", "about:")

    def opener(
        query: str = "", width: int = 1280, height: int = 900, dark: bool = False, address: str = live.address
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light",
            permissions=["clipboard-read", "clipboard-write"],
        )  # fmt: skip
        contexts.append(context)
        context.set_default_timeout(1000 * PATIENCE)
        page = context.new_page()
        page.on("console", lambda said: said.type == "error" and watched.errors.append(said.text))
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith(own) or watched.elsewhere.append(asked.url))
        page.goto(address + query)
        page.get_by_role("tab", name="Draw", exact=True).wait_for()
        page.locator("#draw-stage").wait_for(state="attached")  # the tabs' contents are mounted after the tabs
        [shown] = parse_qs(query.removeprefix("?")).get("tab", ["draw"])
        page.locator(f"#tab-{shown}").wait_for()  # a link's tab is shown when the server has answered the page
        return page

    yield opener
    for context in contexts:
        context.close()
    assert watched == Watched()
