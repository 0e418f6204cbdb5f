"""Shutdown of `serve --ray` without a cluster: order of the calls to Serve, with a working or a broken log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from polydraft.apps.ray import run as process
from polydraft.apps.ray.ingress import drained
from polydraft.apps.ray.named import Named
from polydraft.apps.ray.run import drain, host
from polydraft.apps.server.engine.engine import ServerEngine
from polydraft.apps.server.run import StopSignals, unfailing
from polydraft.apps.server.settings import ServerSettings

LONG = 60.0  # Timeout in seconds, far above what any test takes.


class Response:
    """Response of a Serve call, complete when `event` is set."""

    def __init__(self, event: threading.Event, error: Exception | None = None) -> None:
        self.event, self.error = event, error

    def result(self, timeout_s: float) -> None:
        if self.error is not None:
            raise self.error
        if not self.event.wait(timeout_s):
            raise TimeoutError


class Serve:
    """Stand-in for `ray.serve` with a front; `calls` records the calls of both in order."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.finished, self.error = threading.Event(), error
        self.drain = self

    def remote(self, seconds: float) -> Response:
        self.calls.append(f"drain {seconds:g}")
        return Response(self.finished, self.error) if seconds else Response(set_event())

    def get_deployment_handle(self, name: str, app_name: str) -> Any:
        return self

    def start(self, **options: Any) -> None:
        self.calls.append("start")

    def run(self, application: Any, **options: Any) -> None:
        self.calls.append("run")

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def until(holds: Callable[[], bool]) -> None:
    end = threading.Event()
    for _ in range(int(LONG / 0.01)):
        if holds():
            return
        end.wait(0.01)
    raise AssertionError("it did not come")


def test_signal_with_broken_log_drains_before_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "application", lambda given: None)
    monkeypatch.setattr(process, "wait_ready", lambda where, stop: None)
    serve, signals, lines = Serve(), StopSignals(threading.Event), []

    def broken(line: str) -> None:
        lines.append(line)
        raise BrokenPipeError("nobody reads")

    arguments = (serve, ServerSettings(drain=LONG), "http://127.0.0.1:1", 1, signals, unfailing(broken))
    hosting = threading.Thread(target=host, args=arguments, daemon=True)
    hosting.start()
    until(lambda: lines[-1:] == ["listening on http://127.0.0.1:1"])
    signals.take("SIGTERM")
    until(lambda: "drain 60" in serve.calls)
    assert "shutdown" not in serve.calls and hosting.is_alive()
    serve.finished.set()
    hosting.join(LONG)
    assert serve.calls == ["start", "run", "drain 60", "shutdown"]


def test_second_signal_cancels_running_requests() -> None:
    serve, signals = Serve(), StopSignals(threading.Event)
    signals.take("SIGTERM")
    draining = threading.Thread(target=drain, args=(serve, LONG, signals, print), daemon=True)
    draining.start()
    until(lambda: serve.calls == ["drain 60"])
    signals.take("SIGINT")
    draining.join(LONG)
    assert serve.calls == ["drain 60", "drain 0"] and not draining.is_alive()


def test_lost_front_ends_the_drain() -> None:
    lines: list[str] = []
    drain(Serve(RuntimeError("gone")), LONG, StopSignals(threading.Event), lines.append)
    assert "RuntimeError" in lines[0]


def test_front_drain_waits_for_requests_and_responses() -> None:
    """Drain while a response is still being sent although its request has finished."""

    async def test() -> None:
        engine, go, started = ServerEngine(), asyncio.Event(), asyncio.Event()
        engine.worker.begin = lambda *given: None  # type: ignore[method-assign]
        engine.model = lambda *given: Anything()  # type: ignore[method-assign,assignment,return-value]
        handle = engine.submit("any", "speech", {})

        async def app(scope: Any, receive: Any, send: Any) -> None:
            started.set()
            await go.wait()

        named = Named(app)
        answering = asyncio.create_task(named({"type": "http", "headers": []}, None, None))  # type: ignore[arg-type]
        await started.wait()
        draining = asyncio.create_task(drained(named, engine, LONG))
        while not engine.draining:
            await asyncio.sleep(0)
        handle.finish("whole")
        assert not (await asyncio.wait({draining}, timeout=0.3))[0] and named.open == 1
        go.set()
        await asyncio.gather(answering, draining)
        assert named.open == 0

    asyncio.run(asyncio.wait_for(test(), LONG))


class Anything:
    """Stand-in for a model."""

    name, pipe = "any", None

    def prompts(self, arguments: dict[str, Any]) -> int:
        return 1
