"""Live page on a free loopback port, in a thread of this process, and a browser that must load nothing else."""

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

from ...modalities.transcription.tiny_whisper import write_tiny_whisper

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # Set before anything imports Gradio.

PATIENCE = 240  # Timeout in seconds on a slow, busy machine.
STOP = 40  # Seconds for the page to stop, thirty of them for its compute thread.

KEY = "sesame"
LISTENING = "tiny-whisper"  # model with random weights


@dataclass
class Live:
    """The page's address, the same page behind KEY, and the engine behind both with the loop it lives in."""

    address: str
    keyed: str
    engine: Any
    loop: asyncio.AbstractEventLoop

    def compute(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function on the compute thread, between passes."""
        work = self.engine.compute(function, *arguments, **options)
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def cancelled(self) -> int:
        """Return the number of cancelled requests."""
        return sum(count for (_, state), count in self.engine.meter.outcomes.items() if state == "cancelled")


def until(what: Callable[[], bool], why: str) -> None:
    """Wait until a condition holds, at most PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, f"after {PATIENCE} s still not so: {why}"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    pytest.importorskip("gradio", reason="Gradio is not installed: pip install 'polydraft[ui]'")
    import uvicorn

    from polydraft.apps.server.api.app import create_app, create_engine, guarded
    from polydraft.apps.server.run import choices
    from polydraft.apps.server.settings import EMBEDDED, settings

    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    up, servers, running_engine = threading.Event(), [], {}
    models = [*EMBEDDED, str(write_tiny_whisper(tmp_path_factory.mktemp("models") / LISTENING, confidence=8.0))]

    async def serve() -> None:
        ways = [settings({"port": 0, "models": models}), settings({"port": 0, "models": models, "api_key": KEY})]
        engine = create_engine(ways[0])
        await engine.start(choices(ways[0]))
        for chosen in ways:
            app = guarded(create_app(chosen, engine), chosen)
            servers.append(uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)))
        running_engine.update(engine=engine, loop=asyncio.get_running_loop())
        serving = asyncio.gather(*(server.serve([at]) for server, at in zip(servers, listening, strict=True)))
        while not all(server.started for server in servers) and not serving.done():
            await asyncio.sleep(0.02)
        up.set()
        await serving
        await engine.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert up.wait(4 * PATIENCE), "the page did not start"
    yield Live(*(f"http://127.0.0.1:{at.getsockname()[1]}/ui/" for at in listening), **running_engine)
    for server in servers:
        server.should_exit = True
    thread.join(STOP)
    for at in listening:
        at.close()
    assert not thread.is_alive(), f"the page did not stop within {STOP} s"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Launch Chromium for one module, since Playwright's event loop counts as running in this thread until it ends."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed")
    from playwright.sync_api import sync_playwright

    options = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required", "--mute-audio",
               "--use-fake-device-for-media-stream"]  # fmt: skip
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=options, timeout=1000 * PATIENCE)
        yield running
        running.close()


@dataclass
class BrowserErrors:
    """Errors and foreign requests that a browser reported."""

    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)


@pytest.fixture
def open_page(live: Live, browser: Any) -> Iterator[Callable[..., Any]]:
    """Return a function that opens the page; fail at the end if a page had an error or contacted another host."""
    failures, contexts = BrowserErrors(), []
    allowed = (live.address.removesuffix("ui/"), live.keyed.removesuffix("ui/"), "data:", "blob:", "about:")

    def opener(
        query: str = "", width: int = 1280, height: int = 900, dark: bool = False, address: str = live.address
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light",
            permissions=["clipboard-read", "clipboard-write", "microphone"],
        )  # fmt: skip
        contexts.append(context)
        context.set_default_timeout(1000 * PATIENCE)
        page = context.new_page()
        page.on("console", lambda message: message.type == "error" and failures.errors.append(message.text))
        page.on("pageerror", lambda error: failures.errors.append(str(error)))
        page.on("request", lambda request: request.url.startswith(allowed) or failures.elsewhere.append(request.url))
        page.goto(address + query)
        page.get_by_role("tab", name="Draw", exact=True).wait_for()
        page.locator("#draw-stage").wait_for(state="attached")  # Contents of tabs are mounted after the tabs.
        [tab] = parse_qs(query.removeprefix("?")).get("tab", ["draw"])
        page.locator(f"#tab-{tab}").wait_for()  # The tab of a link is shown after the server has answered.
        return page

    yield opener
    for context in contexts:
        context.close()
    assert failures == BrowserErrors()
