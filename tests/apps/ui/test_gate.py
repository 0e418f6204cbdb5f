"""Gate of the page: an allow-list of Gradio's routes, and bounds on stored sounds and uploads."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("gradio", reason="Gradio is not installed: pip install 'polydraft[ui]'")
from fastapi import FastAPI
from starlette.responses import PlainTextResponse

from polydraft.apps.server.api.paths import RootPath
from polydraft.apps.server.limits import LARGEST_PICTURE
from polydraft.apps.ui.gate import Gate
from polydraft.apps.ui.kept import Bounds, KeptBySession
from polydraft.apps.ui.upload import MOST_AT_ONCE, MOST_FILES, Uploads

OPEN = (
    ("GET", "/"), ("HEAD", "/"), ("GET", "/config"), ("GET", "/theme.css"), ("GET", "/assets/index-a1.js"),
    ("GET", "/gradio_api/info"), ("GET", "/gradio_api/queue/data"), ("GET", "/gradio_api/heartbeat/a1b2"),
    ("POST", "/gradio_api/queue/join"), ("POST", "/gradio_api/run/predict"), ("POST", "/gradio_api/cancel"),
    ("POST", "/gradio_api/call/draw"), ("GET", "/gradio_api/call/draw/0a1b"), ("GET", "/gradio_api/startup-events"),
)  # fmt: skip
SHUT = (
    "GET /gradio_api/file=https://example.org/x.png", "GET /gradio_api/file=HTTP://example.org/x.png",
    "GET /gradio_api/file=/etc/passwd", "GET /gradio_api/file={folder}/../x", "GET /gradio_api/file=pyproject.toml",
    "GET /gradio_api/file={folder}x/secret", "GET /gradio_api/file=", "POST /gradio_api/file={folder}/a.png",
    "GET /gradio_api/file=file://{folder}/a.png", "GET /gradio_api/file=//example.org/x.png",
    "GET /gradio_api/file/{folder}/a.png", "GET /gradio_api/proxy=https://a.hf.space/x",
    "HEAD /gradio_api/proxy=https://a.hf.space/x", "GET /gradio_api/stream/a/b/1/playlist.m3u8",
    "POST /gradio_api/stream/a", "POST /gradio_api/stream/a/close", "GET /gradio_api/deep_link",
    "POST /gradio_api/upload", "POST /gradio_api/component_server", "POST /gradio_api/process_recording",
    "POST /gradio_api/vibe-edit", "GET /gradio_api/vibe-code", "POST /gradio_api/vibe-code",
    "GET /gradio_api/custom_component/x/client/component/index.js", "GET /gradio_api/dev/reload", "GET /monitoring",
    "GET /monitoring/summary", "GET /gradio_api/mcp/sse", "POST /gradio_api/mcp/", "GET /svelte/x.js", "POST /login",
    "GET /gradio_api/token", "GET /gradio_api/app_id", "GET /gradio_api/runs", "POST /gradio_api/run-history/connect",
    "GET /gradio_api/openapi.json", "GET /openapi.json", "GET /docs", "GET /assets/../../x", "GET /pwa_icon",
    "POST /gradio_api/call/v2/draw", "DELETE /", "OPTIONS /gradio_api/queue/join", "GET /assets/%2e%2e/x",
    "GET /static/..%2fx", "POST /gradio_api/run/../upload", "GET /gradio_api/profiling/traces", "GET /anything",
)  # fmt: skip


def send_request(gate: Gate, method: str, path: str, root: str = "/ui") -> list[dict[str, Any]]:
    """Return the messages that a gate sends for a request."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": method, "path": root + path, "root_path": root, "headers": []}
    asyncio.run(gate(scope, receive, send))
    return sent


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Return a gate before an application that answers everything and allows every origin."""
    answers = PlainTextResponse("Gradio", headers={"access-control-allow-origin": "https://evil.example"})
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a.png").write_bytes(b"a")
    return Gate(answers, tmp_path / "kept")


@pytest.mark.parametrize(("method", "path"), OPEN)
def test_routes_of_the_page_are_open(gate: Gate, method: str, path: str) -> None:
    start = send_request(gate, method, path)[0]
    headers = dict(start["headers"])
    assert start["status"] == 200 and b"access-control-allow-origin" not in headers
    assert b"frame-ancestors 'none'" in headers[b"content-security-policy"]


@pytest.mark.parametrize("request_line", SHUT)
def test_other_routes_of_gradio_are_shut(gate: Gate, request_line: str) -> None:
    method, _, path = request_line.format(folder=gate.folder).partition(" ")
    assert send_request(gate, method, path)[0]["status"] == 404


def test_only_files_of_the_folder_are_served(gate: Gate, tmp_path: Path) -> None:
    def status(name: str) -> int:
        return int(send_request(gate, "GET", f"/gradio_api/file={name}")[0]["status"])

    (tmp_path / "secret").write_bytes(b"s")
    (gate.folder / "link").symlink_to(tmp_path / "secret")
    assert status(f"{gate.folder}/a.png") == 200
    assert status(f"{gate.folder}/link") == status(f"{gate.folder}/../secret") == status("a" * 9000) == 404
    assert status(f"{gate.folder}/a.png\0") == 404


def test_every_gradio_route_is_allowed_or_refused(gate: Gate) -> None:
    """Check the list of open routes; routes that a Gradio release adds stay closed."""
    gr = pytest.importorskip("gradio")
    with gr.Blocks() as page:
        gr.Textbox()
    paths = gr.routes.App.create_app(page).openapi()["paths"]
    filled = [(method.upper(), re.sub(r"{\w+}", "x", path)) for path, methods in paths.items() for method in methods]
    opened = {path.removeprefix("/gradio_api") for method, path in filled if gate.is_open(method, path)}
    assert len(filled) > 60
    assert opened == {
        "/", "/config", "/theme.css", "/assets/x", "/static/x", "/info", "/queue/data", "/startup-events",
        "/heartbeat/x", "/queue/join", "/cancel", "/reset", "/run/x", "/call/x", "/call/x/x",
    }  # fmt: skip


BOUNDS = Bounds(count=3, size=100, total_count=7, total_size=250, age=60)


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_after_every_step(seed: int) -> None:
    rng = random.Random(seed)
    steps = [(rng.randint(0, 4), rng.randint(0, 60), rng.randint(0, 30)) for _ in range(40)]
    now, dropped = [0.0], list[str]()
    kept: KeptBySession[str] = KeptBySession(BOUNDS, dropped.append, lambda: now[0])
    for number, (session, size, seconds) in enumerate(steps):
        now[0] += seconds
        kept.put(str(number), str(session), str(number), size)
        assert kept.get(str(number)) == str(number)  # The newest entry stays.
        entries = list(kept.entries.values())
        mine = [entry for entry in entries if entry.session == str(session)]
        assert len(mine) <= BOUNDS.count and sum(entry.size for entry in mine) <= BOUNDS.size
        assert len(entries) <= BOUNDS.total_count and sum(entry.size for entry in entries) <= BOUNDS.total_size
        assert all(entry.at >= now[0] - BOUNDS.age for entry in entries)
    assert sorted(dropped + [entry.value for entry in kept.entries.values()]) == sorted(map(str, range(len(steps))))


def test_largest_session_is_evicted_first() -> None:
    kept: KeptBySession[str] = KeptBySession(Bounds(count=99, size=999, total_count=99, total_size=100, age=60))
    kept.put("mine", "me", "mine", 20)
    for number in range(20):
        kept.put(f"theirs {number}", "them", "theirs", 20)
    assert kept.get("mine") == "mine" and len(kept.entries) == 5


def post_files(uploads: Uploads, files: list[tuple[str, bytes]], times: int = 1) -> list[httpx.Response]:
    """Return the responses to repeated uploads of the same files."""
    app = FastAPI()
    app.include_router(uploads.router())

    async def post() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            form = [("files", file) for file in files]
            return [await client.post("/gradio_api/upload", files=form) for _ in range(times)]

    return asyncio.run(post())


def kept_files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def test_uploads_are_bounded_and_removed(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, Bounds(count=2, size=1000, total_count=9, total_size=9000, age=3600))
    answers = post_files(uploads, [("../../a.png", b"x" * 300)], times=5)
    paths = [Path(answer.json()[0]) for answer in answers]
    assert len(set(paths)) == 5 and all(path.is_relative_to(tmp_path) and path.name == "picture.png" for path in paths)
    assert sorted(kept_files(tmp_path)) == sorted(paths[-2:]) and len(list(tmp_path.iterdir())) == 2
    uploads.kept.clear()
    assert list(tmp_path.iterdir()) == []


def test_too_large_uploads_are_refused_without_files(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path)
    [many] = post_files(uploads, [(f"{number}.png", b"x") for number in range(MOST_FILES + 1)])
    [large] = post_files(uploads, [("a.png", bytes(LARGEST_PICTURE + 1))])
    uploads.under_way = MOST_AT_ONCE
    [busy] = post_files(uploads, [("a.png", b"x")])
    assert (many.status_code, large.status_code, busy.status_code) == (400, 413, 429)
    assert kept_files(tmp_path) == [] and uploads.under_way == MOST_AT_ONCE


def test_sounds_may_be_larger_than_pictures(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, max_sound_bytes=LARGEST_PICTURE + 10)
    [sound] = post_files(uploads, [("talk.MP3", bytes(LARGEST_PICTURE + 1))])
    [video] = post_files(uploads, [("talk.mp4", bytes(LARGEST_PICTURE + 11))])
    [other] = post_files(uploads, [("talk.txt", bytes(LARGEST_PICTURE + 1))])
    assert [answer.status_code for answer in (sound, video, other)] == [200, 413, 413]
    assert "sound or video may have 24 MB" in video.text and Path(sound.json()[0]).name == "sound.mp3"


def test_interrupted_upload_leaves_no_files(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path)
    app = FastAPI()
    app.include_router(uploads.router())
    first_chunk = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n' + bytes(3_000_000)
    messages = [{"type": "http.request", "body": first_chunk, "more_body": True}, {"type": "http.disconnect"}]
    scope = {
        "type": "http", "method": "POST", "path": "/gradio_api/upload", "query_string": b"", "http_version": "1.1",
        "headers": [(b"content-type", b"multipart/form-data; boundary=x")], "root_path": "", "scheme": "http",
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        pass

    asyncio.run(app(scope, receive, send))
    assert kept_files(tmp_path) == [] and uploads.under_way == 0


@pytest.mark.parametrize("prefix", ["", "/polydraft"])
def test_gate_knows_its_routes_behind_a_prefix(gate: Gate, prefix: str) -> None:
    app = FastAPI()
    app.mount("/ui", gate)
    served = RootPath(app, prefix) if prefix else app

    async def statuses() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://localhost") as client:
            paths = ("/ui/", "/ui/config", "/ui/monitoring", f"/ui/gradio_api/file={gate.folder}/a.png")
            return [(await client.get(prefix + path)).status_code for path in paths]

    assert asyncio.run(statuses()) == [200, 200, 404, 200]
