"""Page behind a proxy that serves it under a prefix and strips the prefix from requests."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from .conftest import PATIENCE, Live

PREFIX, NAME = "/polydraft", "proxy.example"


def behind_proxy(app: Any) -> Any:
    """Return `app` behind a proxy that strips the prefix and serves HTTPS."""

    async def stripping(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"].startswith(f"{PREFIX}/")
        path = scope["path"].removeprefix(PREFIX)
        forwarded = [(b"x-forwarded-host", NAME.encode()), (b"x-forwarded-proto", b"https")]
        scope = scope | {"path": path, "raw_path": path.encode(), "headers": [*scope["headers"], *forwarded]}
        await app(scope, receive, send)

    return stripping


async def exercise_page(app: Any) -> None:
    """Open the page, fetch its assets, and run its first event to the end."""
    transport = httpx.ASGITransport(behind_proxy(app))
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{NAME}{PREFIX}", timeout=PATIENCE) as http:
        page = await http.get("/ui/")
        assert page.status_code == 200
        named = re.findall(r'(?:src|href)="(\./[^"]+\.(?:js|css))"', page.text)
        assert named
        for path in named:
            assert (await http.get(f"/ui/{path.removeprefix('./')}")).status_code == 200, path
        config = (await http.get("/ui/config")).json()
        assert config["root"] == f"https://{NAME}{PREFIX}/ui"
        first = next(each for each in config["dependencies"] if each["targets"][0][1] == "load")
        asked = {"fn_index": first["id"], "data": [""] * len(first["inputs"]), "session_hash": "a1"}
        joined = await http.post("/ui/gradio_api/queue/join", json=asked, headers={"origin": f"https://{NAME}"})
        assert joined.status_code == 200, joined.text
        async with http.stream("GET", "/ui/gradio_api/queue/data", params={"session_hash": "a1"}) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data: ") and json.loads(line[6:])["msg"] == "process_completed":
                    assert json.loads(line[6:])["success"]
                    return
    raise AssertionError("its first event did not end")


def test_page_behind_a_stripping_proxy_works(live: Live) -> None:
    pytest.importorskip("gradio")
    from polydraft.apps.server.api.app import create_app, guarded
    from polydraft.apps.server.settings import settings

    async def run_page() -> None:
        chosen = settings({"port": 0, "root_path": PREFIX, "hosts": [NAME]})
        app = create_app(chosen, live.engine)
        async with app.router.lifespan_context(app):
            await exercise_page(guarded(app, chosen))

    asyncio.run_coroutine_threadsafe(run_page(), live.loop).result(PATIENCE)
