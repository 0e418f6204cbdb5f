"""Guards of the server: keys, host names and settings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from polydraft.apps.server.api.app import create_app, create_engine, guarded
from polydraft.apps.server.api.sessions import LIFETIME
from polydraft.apps.server.settings import ServerSettings, settings
from polydraft.core.errors import InvalidArgument

from .reading import problem


def fetch(chosen: ServerSettings, path: str, **options: Any) -> httpx.Response:
    """Return the response of an application whose models are never loaded."""
    app = guarded(create_app(chosen, create_engine(chosen)), chosen)

    async def send_request() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:8000") as client:
            return await client.request(options.pop("method", "GET"), path, **options)

    return asyncio.run(send_request())


KEYED = ServerSettings(api_key="sesame", ui=False)


@pytest.mark.parametrize(
    ("headers", "is_authorised"),
    [
        ({}, False), ({"authorization": "Bearer sesame"}, True), ({"authorization": "bearer  sesame"}, True),
        ({"authorization": "Bearer Sesame"}, False), ({"authorization": "sesame"}, False),
        ({"authorization": "Basic sesame"}, False), ({"cookie": "polydraft_key=sesame"}, False),
        ({"cookie": "polydraft_session_8000=sesame"}, False), ({"cookie": "\x01=;;"}, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/version", "/openapi.json", "/ui", "/nothing"])
def test_key_protects_every_route(path: str, headers: dict[str, str], is_authorised: bool) -> None:
    answer = fetch(KEYED, path, headers=headers)
    assert (answer.status_code != 401) == is_authorised
    if not is_authorised:
        assert problem(answer)["type"] == "authentication_error" and answer.headers["www-authenticate"] == "Bearer"


def test_key_in_url_is_exchanged_for_cookie() -> None:
    answer = fetch(KEYED, "/ui?key=sesame")
    assert answer.status_code == 303 and answer.headers["location"] == "/ui"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("polydraft_session_8000=") and "sesame" not in cookie
    assert {"HttpOnly", "SameSite=strict", f"Max-Age={LIFETIME}"} <= set(cookie.split("; "))
    linked = fetch(KEYED, "/ui/?tab=speak&key=sesame&text=a%26b")
    assert linked.headers["location"] == "/ui/?tab=speak&text=a%26b"  # The settings of a shared link, without the key.
    assert fetch(KEYED, "/ui?key=guess").status_code == 401 == fetch(KEYED, "/v1/models?key=sesame").status_code
    assert "set-cookie" not in fetch(KEYED, "/ui?key=guess").headers
    assert fetch(KEYED, "/ui?key=sesame", method="POST").status_code == 401


def test_unneeded_key_is_removed_from_url() -> None:
    assert fetch(ServerSettings(ui=False), "/ui/?key=sesame&tab=ask").headers["location"] == "/ui/?tab=ask"


def test_key_in_url_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="polydraft.access"):
        fetch(KEYED, "/ui?key=sesame")
        fetch(KEYED, "/ui?key=sesam")
    assert len(caplog.records) == 2 and not any("sesam" in str(vars(record)) for record in caplog.records)


def test_health_and_readiness_need_no_key() -> None:
    assert fetch(KEYED, "/health").json() == {"status": "ok"}
    ready = fetch(KEYED, "/ready")
    assert ready.status_code == 503 and ready.json() == {"status": "loading"}


def test_work_is_refused_while_models_are_loaded() -> None:
    answer = fetch(ServerSettings(ui=False), "/v1/images/generations", method="POST", json={"prompt": "a cat"})
    assert answer.status_code == 503 and problem(answer)["code"] == "loading"


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8000", 200), ("[::1]:8000", 200), ("LOCALHOST", 200), ("evil.example", 403), ("me.lan", 200)],
)
def test_only_configured_hosts_are_answered(host: str, status: int) -> None:
    """Refuse pages of other sites whose name resolves to this machine."""
    answer = fetch(ServerSettings(ui=False, hosts=["me.lan"]), "/version", headers={"host": host})
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"host": "0.0.0.0"}, "--api-key"), ({"host": "example.org"}, "--api-key"), ({"port": 70_000}, "port"),
        ({"rows": 0}, "rows"), ({"deadline": float("nan")}, "deadline"), ({"log_level": "loud"}, "log_level"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(given: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidArgument, match=word) as caught:
        settings(given)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_settings_arguments_override_environment_override_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "server.toml"
    file.write_text('port = 1\nrows = 2\nmax_queue = 3\nmodels = ["tiny-vlm"]\n')
    monkeypatch.setenv("POLYDRAFT_ROWS", "20")
    monkeypatch.setenv("POLYDRAFT_MAX_QUEUE", "30")
    monkeypatch.setenv("POLYDRAFT_API_KEY", "sesame")
    chosen = settings({"max_queue": 300, "host": "0.0.0.0"}, file)
    assert (chosen.port, chosen.rows, chosen.max_queue, chosen.key) == (1, 20, 300, "sesame")
    assert chosen.model_choices == [("tiny-vlm", None)] and "sesame" not in repr(chosen)
    file.write_text("prot = 1\n")
    with pytest.raises(InvalidArgument, match="prot"):
        settings({}, file)
    with pytest.raises(InvalidArgument, match="no file"):
        settings({}, tmp_path / "none.toml")


def test_model_choices_default_to_embedded_models() -> None:
    assert [name for name, _ in settings({}).model_choices] == ["tiny-image", "tiny-speech", "tiny-vlm"]
    assert settings({"speech": "mine", "models": ["other"]}).model_choices == [("other", None), ("mine", "speech")]


def test_documents_name_every_refusal() -> None:
    chosen = ServerSettings(ui=False, api_key="sesame")
    paths = create_app(chosen, create_engine(chosen)).openapi()["paths"]
    assert set(paths) >= {"/v1/images/generations", "/v1/audio/speech", "/v1/chat/completions", "/v1/audio/voices",
                          "/v1/models", "/health", "/ready", "/metrics", "/version"}  # fmt: skip
    for path, operations in paths.items():
        for operation in operations.values():
            assert {"200", "400", "401", "403"} <= set(operation["responses"]) and "422" not in operation["responses"]
            assert ("security" in operation) == (path not in ("/health", "/ready"))
    assert {"413", "429", "500", "503", "504"} <= set(paths["/v1/audio/speech"]["post"]["responses"])
