"""Idle, slow and unread connections are closed or evicted; connections with a running request are kept."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from polydraft.apps.server import connections
from polydraft.apps.server.connections import ApiServer, Connection, most_connections
from polydraft.apps.server.listening import bound
from polydraft.apps.server.settings import ServerSettings

LONG = 60  # Timeout in seconds, far above what any test takes.
GET = b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n"
MEGABYTE = b"x" * 2**20


class App:
    """App that answers /v1/held when `go` is set, /v1/large with megabytes, /v1/echo with the body, others at once."""

    def __init__(self) -> None:
        self.go, self.num_held = asyncio.Event(), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["path"] == "/v1/held":
            self.num_held += 1
            await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64 if scope["path"] == "/v1/large" else 0):
            await send({"type": "http.response.body", "body": MEGABYTE, "more_body": True})
        await send({"type": "http.response.body", "body": body or scope["path"].encode()})


@asynccontextmanager
async def serving(most: int = 4, keep_alive: int = 100) -> AsyncIterator[tuple[ApiServer, App, int]]:
    """Serve an `App` with at most `most` connections."""
    listening = bound(ServerSettings(port=0))
    app = App()
    server = ApiServer(app, listening, keep_alive=keep_alive)
    server.most = most
    async with server.running():
        yield server, app, listening.getsockname()[1]
        app.go.set()


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def ask(port: int, path: bytes) -> bytes:
    """Return the response head over a new connection."""
    reader, writer = await connect(port)
    writer.write(GET % path)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LONG)
    writer.close()
    return head


async def until(holds: Callable[[], bool]) -> None:
    async def waiting() -> None:
        while not holds():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(waiting(), LONG)


def run(test: Awaitable[Any]) -> None:
    async def run_bounded() -> None:
        await asyncio.wait_for(test, 2 * LONG)

    asyncio.run(run_bounded())


def test_idle_connections_are_evicted_for_new_ones() -> None:
    async def test() -> None:
        async with serving(most=4) as (server, _, port):
            idle = [await connect(port) for _ in range(12)]
            for _ in range(3):
                assert b"200 OK" in await ask(port, b"/health")
            assert len(server.server_state.connections) <= 4
            assert await asyncio.wait_for(idle[0][0].read(), LONG) == b""  # The oldest connection was evicted first.
            for _, writer in idle:
                writer.close()

    run(test())


def test_busy_connections_are_never_evicted() -> None:
    async def test() -> None:
        async with serving(most=3) as (_, app, port):
            busy = [await connect(port) for _ in range(3)]
            for _, writer in busy:
                writer.write(GET % b"/v1/held")
            await until(lambda: app.num_held == 3)
            idle = await connect(port)
            refused = await ask(port, b"/v1/models")
            assert b" 503 " in refused and b"retry-after: 1" in refused
            assert b"200 OK" in await ask(port, b"/health")
            app.go.set()
            for reader, writer in busy:
                assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LONG)
                writer.close()
            assert b"200 OK" in await ask(port, b"/v1/models")
            idle[1].close()

    run(test())


@pytest.mark.parametrize(
    "sent", [b"GET /health HT", b"POST /v1/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc"]
)
def test_incomplete_request_times_out_with_408(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    async def test() -> None:
        async with serving() as (server, _, port):
            reader, writer = await connect(port)
            writer.write(sent)
            await until(lambda: any(each.received for each in server.server_state.connections))  # type: ignore[union-attr]
            monkeypatch.setattr(connections, "ARRIVAL", -1)
            assert b" 408 " in await asyncio.wait_for(reader.read(), LONG)
            writer.close()
            await until(lambda: not server.server_state.connections)

    monkeypatch.setattr(connections, "LOOK", 0.01)
    run(test())


def test_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with serving() as (_, _, port):
            reader, writer = await connect(port)
            assert await asyncio.wait_for(reader.read(), LONG) == b""
            writer.close()

    monkeypatch.setattr(connections, "LOOK", 0.01)
    monkeypatch.setattr(connections, "ARRIVAL", 0.05)
    run(test())


def test_connection_without_reader_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with serving() as (server, _, port):
            with socket.create_connection(("127.0.0.1", port)) as silent:
                silent.sendall(GET % b"/v1/large")
                await until(lambda: bool(server.server_state.connections))
                await until(lambda: not server.server_state.connections)

    monkeypatch.setattr(connections, "LOOK", 0.01)
    monkeypatch.setattr(connections, "STALL", 0.05)
    run(test())


def test_large_answer_to_a_slow_reader_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with serving() as (_, _, port):
            reader, writer = await connect(port)
            writer.write(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") % b"/v1/large")
            size = 0
            while piece := await asyncio.wait_for(reader.read(2**20), LONG):
                size += len(piece)
                await asyncio.sleep(0)
            assert size > 64 * len(MEGABYTE)
            writer.close()

    monkeypatch.setattr(connections, "LOOK", 0.01)
    run(test())


def test_arrival_deadline_grows_with_received_bytes() -> None:
    async def test() -> None:
        async with serving() as (server, _, port):
            _, writer = await connect(port)
            writer.write(b"POST /v1/echo HTTP/1.1\r\n")
            await until(lambda: any(each.received for each in server.server_state.connections))  # type: ignore[union-attr]
            [connection] = server.server_state.connections
            assert isinstance(connection, Connection) and connection.arriving_since is not None
            since = connection.arriving_since
            late = connections.ARRIVAL + connection.received / connections.RATE + 0.1
            assert connection.is_overdue(since + late) and not connection.is_overdue(since + connections.ARRIVAL)
            connection.received += 100 * connections.RATE
            assert not connection.is_overdue(since + late + 99) and connection.is_overdue(since + late + 101)
            writer.close()

    run(test())


def test_idle_connection_is_kept_and_timeout_announced() -> None:
    async def test() -> None:
        async with serving(keep_alive=90) as (server, _, port):
            reader, writer = await connect(port)
            for path in (b"/a", b"/b"):
                writer.write(GET % path)
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LONG)
                assert b"keep-alive: timeout=90" in head
                await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), LONG)
            [kept] = server.server_state.connections
            assert isinstance(kept, Connection) and kept.timeout_keep_alive == 90
            assert not kept.is_overdue(kept.opened + 10_000)  # uvicorn's timer closes it.
            writer.close()

    run(test())


def test_accept_without_file_handles_logs_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        honest, left = loop.sock_accept, [50]

        async def failing_accept(listening: socket.socket) -> Any:
            if left[0]:
                left[0] -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return await honest(listening)

        monkeypatch.setattr(loop, "sock_accept", failing_accept)
        async with serving() as (_, _, port):
            assert b"200 OK" in await ask(port, b"/health")

    monkeypatch.setattr(connections, "PAUSE", 0.0)
    with caplog.at_level(logging.WARNING, logger="polydraft.server"):
        run(test())
    assert len([record for record in caplog.records if "no file is left" in record.getMessage()]) == 1


def test_most_connections_stay_below_the_limit_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (64, 256, 1024, 2**20, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, limit=limit: (limit, limit))
        most = most_connections()
        assert connections.FEWEST <= most <= connections.USUAL
        assert limit == resource.RLIM_INFINITY or most <= limit - connections.SPARE


def test_all_sent_waits_for_api_responses() -> None:
    async def test() -> None:
        async with serving() as (server, app, port):
            _, writer = await connect(port)
            writer.write(GET % b"/v1/held")
            await until(lambda: app.num_held == 1)
            waiting = asyncio.ensure_future(server.all_sent())
            assert not (await asyncio.wait({waiting}, timeout=0.2))[0]
            app.go.set()
            await asyncio.wait_for(waiting, LONG)
            writer.close()

    run(test())
