"""A live server in a thread of this process, on a free port of the loopback, with the embedded models."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
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

LONG = 120  # seconds that nothing here takes, however slow the machine is
MODELS = {"image": "tiny-image", "speech": "tiny-speech", "vlm": "tiny-vlm"}


class Live:
    """url: where it listens; engine: its engine, to be asked in its own loop by `do`."""

    def __init__(self) -> None:
        self.settings = ServerSettings(port=0, ui=False, rows=4, max_queue=16)
        self.engine = create_engine(self.settings)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.do(self.engine.start([ModelChoice(name) for name in MODELS.values()]))
        self.app = create_app(self.settings, self.engine)
        listening = bound(self.settings)
        config = uvicorn.Config(guarded(self.app, self.settings), log_config=None, access_log=False)
        self.server = uvicorn.Server(config)
        self.serving = asyncio.run_coroutine_threadsafe(self.server._serve(sockets=[listening]), self.loop)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.known: dict[str, Any] = {}
        self.http = httpx.Client(base_url=self.url, timeout=LONG)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LONG)

    def ask(self, function: Callable[[], Any]) -> Any:
        """Call something in the server's loop."""

        async def called() -> Any:
            return function()

        return self.do(called())

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", timeout=LONG, **options)

    def alone(self, modality: str, **arguments: Any) -> Any:
        """What the pipeline makes of it with nobody else about; the same is made once."""
        pipe, key = self.engine.model(MODELS[modality]).pipe, f"{modality} {arguments}"
        if key not in self.known or "Image" in key:  # pictures are told apart by where they lie
            self.known[key] = self.do(self.engine.compute(lambda: pipe(**arguments)))
        return self.known[key]

    def live_rows(self) -> int:
        return sum(group.live for group in self.engine.worker.groups.values())

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, asked between passes."""

        async def waiting() -> None:
            while not await self.engine.compute(holds):
                await asyncio.sleep(0.005)

        self.do(asyncio.wait_for(waiting(), LONG))

    @contextmanager
    def held(self) -> Iterator[threading.Event]:
        """Nothing is computed until the event is set, or the block is left."""
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
        """Admission of so many and no more."""
        usual = self.engine.admission

        def use(limits: Admission) -> None:
            self.engine.admission = limits

        self.ask(lambda: use(Admission(rows, queue)))
        try:
            yield
        finally:
            self.until(lambda: not self.engine.handles)
            self.ask(lambda: use(usual))

    def close(self) -> None:
        self.http.close()
        self.server.should_exit = True
        self.serving.result(LONG)
        self.do(self.engine.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(LONG)
