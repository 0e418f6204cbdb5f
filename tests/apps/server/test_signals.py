"""Effects of the first and the second signal, with a broken log, without models."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import httpx
import pytest

from polydraft.apps.server import run as process
from polydraft.apps.server.api.app import create_engine
from polydraft.apps.server.connections import ApiServer
from polydraft.apps.server.engine.engine import ServerEngine
from polydraft.apps.server.errors import Cancelled, Draining
from polydraft.apps.server.listening import bound
from polydraft.apps.server.run import StopSignals, serve, unfailing, unless
from polydraft.apps.server.settings import ServerSettings

LONG = 60  # Timeout in seconds, far above what any test takes.


def broken(line: str) -> None:
    """Fail as a log does whose reader has gone."""
    raise BrokenPipeError(errno.EPIPE, "Broken pipe")


class Anything:
    """Stand-in for a model."""

    name, pipe = "any", None

    def prompts(self, arguments: dict[str, Any]) -> int:
        return 1


class Work:
    """Server without models, with one request that never ends by itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_loading: bool = False) -> None:
        self.settings = ServerSettings(port=0, ui=False, drain=LONG)
        self.listening = bound(self.settings)
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.signals, self.engine = StopSignals(), create_engine(self.settings)
        self.servers: list[ApiServer] = []

        async def start(*arguments: Any) -> None:
            await asyncio.sleep(LONG if is_loading else 0)
            self.engine.ready = True

        def server(*arguments: Any, **options: Any) -> ApiServer:
            self.servers.append(ApiServer(*arguments, **options))
            return self.servers[-1]

        monkeypatch.setattr(self.engine, "start", start)
        monkeypatch.setattr(process, "create_engine", lambda settings: self.engine)
        monkeypatch.setattr(process, "ApiServer", server)

    async def start_until(self, status: str) -> asyncio.Task[ServerEngine]:
        """Start serving and wait until /ready reports `status`."""
        self.http = httpx.AsyncClient(base_url=self.url, timeout=LONG)
        serving = asyncio.create_task(serve(self.settings, self.listening, unfailing(broken), self.signals))
        while (await self.http.get("/ready")).json()["status"] != status:
            assert not serving.done()
        return serving

    def accept(self) -> Any:
        """Accept a request that is never processed."""
        self.engine.worker.begin = lambda *given: None  # type: ignore[method-assign]
        self.engine.model = lambda *given: Anything()  # type: ignore[method-assign,assignment,return-value]
        return self.engine.submit("any", "speech", {})


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * LONG))


def test_first_signal_with_broken_log_finishes_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        work = Work(monkeypatch)
        serving = await work.start_until("ok")
        handle = work.accept()
        work.signals.take("SIGTERM")
        while (await work.http.get("/ready")).json()["status"] != "draining":
            pass
        with pytest.raises(Draining):
            work.accept()
        assert not serving.done() and not handle.outcome.done()
        handle.finish("whole")
        await serving
        assert await handle.result() == "whole" and not work.servers[0].force_exit

    run(test())


def test_second_signal_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        work = Work(monkeypatch)
        serving = await work.start_until("ok")
        handle = work.accept()
        work.signals.take("SIGINT")
        while not work.engine.draining:
            await asyncio.sleep(0.001)
        work.signals.take("SIGINT")
        await serving
        assert isinstance(handle.outcome.exception(), Cancelled) and work.servers[0].force_exit

    run(test())


def test_signal_while_loading_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        work = Work(monkeypatch, is_loading=True)
        serving = await work.start_until("loading")
        assert (await work.http.get("/health")).status_code == 200
        refused = await work.http.post("/v1/audio/speech", json={"input": "Yes."})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "loading"
        work.signals.take("SIGTERM")
        await serving

    run(test())


def test_server_that_cannot_accept_ends_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def accept(server: ApiServer) -> None:
        await asyncio.sleep(0.2)
        raise RuntimeError("planted")

    async def test() -> None:
        work = Work(monkeypatch)
        with pytest.raises(RuntimeError, match="planted"):
            await serve(work.settings, work.listening, unfailing(broken), work.signals)

    monkeypatch.setattr(ApiServer, "accept", accept)
    run(test())


def test_unless_raises_what_the_work_raises() -> None:
    async def failing() -> None:
        raise ValueError("planted")

    async def test() -> None:
        with pytest.raises(ValueError, match="planted"):
            await unless(asyncio.Event(), failing())
        event = asyncio.Event()
        event.set()
        assert not await unless(event, asyncio.sleep(LONG))
        assert await unless(asyncio.Event(), asyncio.sleep(0))

    run(test())
