"""Attacks through a browser: pages of other sites, other ports, other names, frames, forged cookies."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from polydraft.apps.server.api.app import create_app, create_engine
from polydraft.apps.server.api.guards import Guards
from polydraft.apps.server.api.origins import is_refused
from polydraft.apps.server.api.sessions import LIFETIME, Sessions, cookie_name, set_cookie
from polydraft.apps.server.settings import ServerSettings

from .reading import problem

HOST = "localhost:8000"
STATUS_OF_WORK = 503  # The request was let in; models are not loaded here.


def ask(
    path: str, method: str = "POST", guards: dict[str, Any] | None = None, port: int = 8000, **options: Any
) -> httpx.Response:
    """Return the response of a server without models that accepts the loopback's names."""
    chosen = ServerSettings(ui=False)
    app = Guards(create_app(chosen, create_engine(chosen)), hosts=chosen.names, **(guards or {}))

    async def send_request() -> httpx.Response:
        transport, base = httpx.ASGITransport(app), f"http://localhost:{port}"
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            return await client.request(method, path, **options)

    return asyncio.run(send_request())


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, False),  # no browser
        ({"origin": f"http://{HOST}"}, False),
        ({"origin": f"https://{HOST}"}, False),  # a proxy in front speaks TLS
        ({"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "https://me.example", "sec-fetch-site": "same-origin"}, False),  # a proxy that rewrites Host
        ({"origin": "https://good.example", "sec-fetch-site": "cross-site"}, False),  # allowed
        ({"origin": "https://evil.example"}, True),
        ({"origin": "https://evil.example", "sec-fetch-site": "cross-site"}, True),
        ({"origin": "http://localhost:3000"}, True),  # Another program on this machine.
        ({"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}, True),
        ({"origin": "null"}, True), ({"origin": "null", "sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"origin": f"https://{HOST}.evil.example"}, True), ({"origin": f"https://evil.example/{HOST}"}, True),
        ({"origin": f"http://{HOST}@evil.example"}, True), ({"origin": "http://[::1"}, True),
    ],
)  # fmt: skip
def test_post_of_another_site_is_refused(headers: dict[str, str], refused: bool) -> None:
    sent = Headers({"host": HOST} | headers)
    assert is_refused("POST", False, sent, ["https://good.example"]) is refused
    assert not is_refused("POST", False, sent, ["*"])
    assert not is_refused("GET", False, sent, [])


@pytest.mark.parametrize(
    "path", ["/v1/images/generations", "/v1/audio/speech", "/v1/chat/completions", "/ui/gradio_api/upload"]
)
def test_form_post_of_another_site_is_forbidden(path: str) -> None:
    """Refuse `text/plain`, which needs no preflight, so a page of any site could start work."""
    sent = {"origin": "https://evil.example", "content-type": "text/plain"}
    answer = ask(path, headers=sent, content='{"prompt": "a cat"}')
    assert answer.status_code == 403 and problem(answer)["code"] == "cross_site"
    assert ask(path, headers=sent, content="{}", guards={"origins": ["https://evil.example"]}).status_code != 403


def test_requests_of_programs_and_same_origin_pass() -> None:
    for headers in ({}, {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}):
        answer = ask("/v1/images/generations", headers=headers, json={"prompt": "a cat"})
        assert answer.status_code == STATUS_OF_WORK, answer.text


def test_cross_site_request_with_key_is_refused() -> None:
    sent = {"origin": "https://evil.example", "authorization": "Bearer sesame"}
    assert ask("/v1/images/generations", headers=sent, json={}, guards={"key": "sesame"}).status_code == 403


def test_rebound_host_is_refused() -> None:
    """Refuse a host name of the attacker that resolves to this machine, which the browser takes for the same origin."""
    sent = {"host": "evil.example:8000", "origin": "http://evil.example:8000", "sec-fetch-site": "same-origin"}
    assert problem(ask("/v1/images/generations", headers=sent, json={}))["code"] == "unknown_host"
    assert ask("/ui/", "GET", headers={"host": "evil.example:8000"}).status_code == 403


@pytest.mark.parametrize(("dest", "status"), [("document", 404), ("iframe", 403), ("image", 403), ("empty", 403)])
def test_page_is_opened_but_not_embedded_elsewhere(dest: str, status: int) -> None:
    sent = {"sec-fetch-site": "cross-site", "sec-fetch-dest": dest, "sec-fetch-mode": "navigate"}
    assert ask("/ui/nothing", "GET", headers=sent).status_code == status


@pytest.mark.parametrize("path", ["/version", "/ui/", "/nothing", "/v1/models"])
def test_every_answer_forbids_frames_and_sniffing(path: str) -> None:
    headers = ask(path, "GET").headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"] and headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"


KEYED = {"key": "sesame", "sessions": Sessions()}


def issue_cookie(port: int = 8000, **guards: Any) -> str:
    """Return name and value of the cookie that the key is exchanged for."""
    answer = ask("/ui?key=sesame", "GET", KEYED | guards, port)
    return answer.headers["set-cookie"].partition(";")[0]


def test_cookie_opens_until_it_is_forged() -> None:
    cookie = issue_cookie()
    assert ask("/version", "GET", KEYED, headers={"cookie": f"a=b; {cookie}"}).status_code == 200
    name, _, value = cookie.partition("=")
    id, expires, signature = value.split(".")
    forged = (
        "sesame", f"{id}.{int(expires) + 1}.{signature}", f"x{id}.{expires}.{signature}", f"{id}.{expires}.{'0' * 64}",
        f"{id}.{expires}.", f"{id}.{expires}", f"{id}.²³.{signature}", f"{id}.{'9' * 5000}.{signature}", "é.é.é", "..",
    )  # fmt: skip
    for value in forged:
        answer = ask("/version", "GET", KEYED, headers={"cookie": f"{name}={value}".encode()})
        assert answer.status_code == 401, value


def test_cookie_is_random_and_not_the_key() -> None:
    first, second = issue_cookie(), issue_cookie()
    assert first != second and "sesame" not in first + second


def test_cookie_of_another_port_or_process_opens_nothing() -> None:
    name, _, value = issue_cookie(port=9000).partition("=")
    assert name == cookie_name(9000)
    for sent in (f"{name}={value}", f"{cookie_name(8000)}={value}"):
        assert ask("/version", "GET", KEYED, headers={"cookie": sent}).status_code == 401
    assert ask("/version", "GET", {"key": "sesame"}, headers={"cookie": issue_cookie()}).status_code == 401


def test_cookie_expires() -> None:
    now = [time.time()]
    sessions = Sessions(clock=lambda: now[0])
    id, value = sessions.issue(8000)
    sent = set_cookie(value, 8000, "", secure=True).partition(";")[0]
    assert sessions.session_id(sent, 8000) == id
    now[0] += LIFETIME + 1
    assert sessions.session_id(sent, 8000) == ""


def test_cross_site_request_with_cookie_is_refused() -> None:
    sent = {"cookie": issue_cookie(), "origin": "https://evil.example"}
    assert ask("/v1/images/generations", guards=KEYED, headers=sent, json={}).status_code == 403


def test_websockets_are_refused() -> None:
    """Refuse websockets: the page uses none, and browsers open them without the same-origin rules."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def send_request() -> None:
        await Guards(app=None)({"type": "websocket", "headers": [], "path": "/ui"}, None, send)  # type: ignore[arg-type]

    asyncio.run(send_request())
    assert [message["type"] for message in sent] == ["websocket.close"]
