"""Live server in a thread of this process, on a free loopback port, with the embedded models."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import uvicorn

from polydraft.apps.server.api.app import create_app, create_engine, guarded
from polydraft.apps.server.engine.engine import ModelChoice
from polydraft.apps.server.limits import Admission
from polydraft.apps.server.listening import bound
from polydraft.apps.server.settings import ServerSettings

LONG = 120  # Timeout in seconds, far above what any test takes.
MODELS = {"image": "tiny-image", "speech": "tiny-speech", "vlm": "tiny-vlm"}


class Live:
    """Live server at `url`; `do` and `ask` reach its `engine` in the server's event loop."""

    def __init__(self, models: Mapping[str, str] = MODELS, **settings: Any) -> None:
        """Start it with the embedded models, or with others by their modality."""
        self.models = models
        self.settings = ServerSettings(port=0, ui=False, **{"rows": 4, "max_queue": 16} | settings)
        self.engine = create_engine(self.settings)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.do(self.engine.start([ModelChoice(name) for name in models.values()]))
        self.app = create_app(self.settings, self.engine)
        listening = bound(self.settings)
        config = uvicorn.Config(guarded(self.app, self.settings), log_config=None, access_log=False)
        self.server = uvicorn.Server(config)
        self.serving = asyncio.run_coroutine_threadsafe(self.server._serve(sockets=[listening]), self.loop)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.results: dict[str, Any] = {}
        self.http = httpx.Client(base_url=self.url, timeout=LONG)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await a coroutine in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LONG)

    def ask(self, function: Callable[[], Any]) -> Any:
        """Call a function in the server's event loop."""

        async def call() -> Any:
            return function()

        return self.do(call())

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", timeout=LONG, **options)

    def run_pipeline(self, modality: str, **arguments: Any) -> Any:
        """Return the pipeline's result for a single request, cached by its arguments."""
        pipe, key = self.engine.model(None, modality).pipe, f"{modality} {arguments}"
        if key not in self.results or "Image" in key:  # The text of an image names its address only.
            self.results[key] = self.do(self.engine.compute(lambda: pipe(**arguments)))
        return self.results[key]

    def live_rows(self) -> int:
        return sum(group.live for group in self.engine.worker.groups.values())

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is checked between passes."""

        async def poll() -> None:
            while not await self.engine.compute(holds):
                await asyncio.sleep(0.005)

        self.do(asyncio.wait_for(poll(), LONG))

    @contextmanager
    def pause_compute(self) -> Iterator[threading.Event]:
        """Pause the compute thread until the event is set or the block is left."""
        go, reached = threading.Event(), threading.Event()

        def hold() -> None:
            reached.set()
            go.wait(LONG)

        self.engine.worker.compute.call(hold)
        assert reached.wait(LONG)
        try:
            yield go
        finally:
            go.set()

    @contextmanager
    def limited(self, rows: int, queue: int) -> Iterator[None]:
        """Limit admission to `rows` running and `queue` waiting requests."""
        usual = self.engine.admission

        def use(limits: Admission) -> None:
            self.engine.admission = limits

        self.ask(lambda: use(Admission(rows, queue)))
        try:
            yield
        finally:
            self.wait_until(lambda: not self.engine.handles)
            self.ask(lambda: use(usual))

    def close(self) -> None:
        self.http.close()
        self.server.should_exit = True
        self.serving.result(LONG)
        self.do(self.engine.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(LONG)
