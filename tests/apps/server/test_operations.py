"""Operation of the service: probes, proxies, browsers of other origins, and settings."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.main
from click import Option

from polydraft.apps.cli.main import app as command_line
from polydraft.apps.server.api.app import create_app, create_engine, guarded
from polydraft.apps.server.listening import address, bound
from polydraft.apps.server.settings import OPTIONS, ServerSettings, settings
from polydraft.core.errors import InvalidArgument

from .reading import problem

PUBLIC = ServerSettings(host="0.0.0.0", open=True, hosts=["me.lan"], ui=False)
KEYED = ServerSettings(api_key="sesame", ui=False)
PREFIXED = ServerSettings(root_path="/pd", api_key="sesame", ui=False)


def fetch(chosen: ServerSettings, path: str, method: str = "GET", page: bool = False, **options: Any) -> httpx.Response:
    """Return the answer of an application whose models are never loaded."""
    app = create_app(chosen, create_engine(chosen))
    app.state.page = page

    async def send_request() -> httpx.Response:
        transport = httpx.ASGITransport(guarded(app, chosen))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
            return await client.request(method, path, **options)

    return asyncio.run(send_request())


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
@pytest.mark.parametrize("host", ["10.0.0.7:8000", "[fd00::7]:8000", "pod-7.cluster.local", ""])
def test_probe_with_any_host_is_answered(path: str, host: str) -> None:
    assert fetch(PUBLIC, path, headers={"host": host}).status_code in (200, 503)
    assert fetch(PUBLIC, "/version", headers={"host": host}).status_code == 403


def test_metrics_with_any_host_require_the_key() -> None:
    assert fetch(KEYED, "/metrics", headers={"host": "10.0.0.7"}).status_code == 401
    assert fetch(KEYED, "/health", headers={"host": "10.0.0.7"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "sent"),
    [("127.0.0.2", "127.0.0.2:8000"), ("::1", "[::1]:8000"), ("[::1]", "[::1]"), ("localhost", "localhost:1")],
)
def test_loopback_host_accepts_its_address(host: str, sent: str) -> None:
    chosen = ServerSettings(host=host, ui=False)
    assert fetch(chosen, "/version", headers={"host": sent}).status_code == 200
    assert fetch(chosen, "/version", headers={"host": "evil.example"}).status_code == 403


def test_named_host_accepts_its_name() -> None:
    chosen = ServerSettings(host="Me.lan", open=True, hosts=["other.lan"], ui=False)
    assert fetch(chosen, "/version", headers={"host": "me.lan:8000"}).status_code == 200
    assert fetch(chosen, "/version", headers={"host": "10.0.0.7:8000"}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_used_port_is_refused_before_loading(host: str) -> None:
    with bound(ServerSettings(host=host, port=0)) as first:
        port = first.getsockname()[1]
        assert address(ServerSettings(host=host), first).endswith(f":{port}")
        with pytest.raises(InvalidArgument, match=f"{host}:{port} .* another --port"):
            bound(ServerSettings(host=host, port=port))
        with socket.create_connection((host, port), timeout=5):
            pass  # The server already listens.


def test_host_of_another_machine_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="cannot be listened on"):
        bound(ServerSettings(host="192.0.2.1", port=0, open=True))  # reserved for documentation, RFC 5737
    with pytest.raises(InvalidArgument, match="cannot be listened on"):
        bound(ServerSettings(host="no such name", port=0, open=True))


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/v1/models", "/openapi.json", "/", "/nothing"])
def test_head_is_answered_as_get_without_body(path: str) -> None:
    head, get = fetch(PUBLIC, path, "HEAD"), fetch(PUBLIC, path)
    same = ("content-type", "content-length")
    assert head.status_code == get.status_code and not head.content
    assert [head.headers.get(name) for name in same] == [get.headers.get(name) for name in same]
    assert fetch(PUBLIC, "/v1/audio/speech", "HEAD").status_code == 405


def test_index_lists_paths_and_redirects_browsers() -> None:
    index = fetch(PUBLIC, "/").json()
    assert index["name"] == "polydraft" and {"/health", "/v1/models", "/openapi.json"} <= set(index["paths"])
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    assert fetch(PUBLIC, "/", headers=browser).status_code == 200  # There is no page here.
    redirect = fetch(PUBLIC, "/", page=True, headers=browser)
    assert redirect.status_code == 307 and redirect.headers["location"] == "/ui/"
    assert "/ui/" in fetch(PUBLIC, "/", page=True).json()["paths"]
    assert fetch(KEYED, "/").status_code == 401


@pytest.mark.parametrize("sent", ["", "/pd"])  # Proxies that strip the prefix, and that keep it.
def test_root_path_is_served_stripped_or_not(sent: str) -> None:
    key = {"authorization": "Bearer sesame"}
    assert fetch(PREFIXED, f"{sent}/health").status_code == 200
    assert fetch(PREFIXED, f"{sent}/version").status_code == 401
    assert fetch(PREFIXED, f"{sent}/version", headers=key).status_code == 200
    assert fetch(PREFIXED, f"{sent}/v1/nothing", headers=key).status_code == 404
    assert "/pd/v1/models" in fetch(PREFIXED, f"{sent}/", headers=key).json()["paths"]
    assert fetch(PREFIXED, f"{sent}/openapi.json", headers=key).json()["servers"] == [{"url": "/pd"}]
    assert fetch(PREFIXED, f"{sent}/ui?key=sesame").headers["location"] == "/pd/ui"
    redirect = fetch(PREFIXED, f"{sent}/", page=True, headers=key | {"accept": "text/html"})
    assert redirect.headers["location"] == "/pd/ui/"


def test_metrics_name_routes_without_the_prefix() -> None:
    engine = create_engine(PREFIXED)
    app = guarded(create_app(PREFIXED, engine), PREFIXED)

    async def send_request() -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            await client.get("/pd/health")
            return (await client.get("/pd/metrics", headers={"authorization": "Bearer sesame"})).text

    assert 'handler="/health"' in asyncio.run(send_request())


ASK = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}


def test_cors_is_off_unless_an_origin_is_given() -> None:
    origin = {"origin": "https://app.example"}
    assert "access-control-allow-origin" not in fetch(KEYED, "/health", headers=origin).headers
    open_to = ServerSettings(api_key="sesame", ui=False, cors_origins=["https://app.example"])
    preflight = fetch(open_to, "/v1/audio/speech", "OPTIONS", headers=origin | ASK)
    assert preflight.status_code == 200 and preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-credentials" not in preflight.headers
    answer = fetch(open_to, "/v1/models", headers=origin | {"authorization": "Bearer sesame"})
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    refused = fetch(open_to, "/v1/models", headers=origin)  # The page can read the reason.
    assert refused.status_code == 401 and problem(refused) and "access-control-allow-origin" in refused.headers
    other = fetch(open_to, "/v1/audio/speech", "OPTIONS", headers={"origin": "https://evil.example"} | ASK)
    assert other.status_code == 400 and "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("key", ["clé", "日本", "sesame\n", " sesame", "a\tb", " "])
def test_key_that_no_header_carries_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match="printable ASCII"):
        settings({"api_key": key})


@pytest.mark.parametrize("name", ["models", "model", "hosts", "allow_host", "cors_origin"])
@pytest.mark.parametrize("text", ["https://a,https://b", ' [ "https://a", "https://b"]', "https://a , https://b,"])
def test_list_from_environment_takes_commas_and_json(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(f"POLYDRAFT_{name.upper()}", text)
    assert getattr(settings({}), OPTIONS.get(name, name)) == ["https://a", "https://b"]


def test_list_of_invalid_json_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYDRAFT_MODELS", "[a, b]")
    with pytest.raises(InvalidArgument, match="a,b or as a JSON list"):
        settings({})


VALUES = {
    "port": "9000", "host": "127.0.0.2", "cors_origins": "https://a", "root_path": "/pd", "log_level": "debug",
    "alias": "tts-1=tiny-speech", "drafter": "tiny-vlm=3", "reference": "tiny-vlm=3",
}  # fmt: skip


def serve_options() -> list[Option]:
    """Return the options of `polydraft serve` that are settings."""
    command = typer.main.get_command(command_line).commands["serve"]  # type: ignore[attr-defined]
    return [option for option in command.params if "--config" not in option.opts and "--help" not in option.opts]


def long_names(option: Option) -> list[str]:
    """Return the long names of an option, without its dashes."""
    return [name.removeprefix("--") for name in option.opts if name.startswith("--")]


@pytest.mark.parametrize("name", [name for option in serve_options() for name in long_names(option)])
def test_option_has_its_variable_and_its_toml_key(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    field = OPTIONS.get(name.replace("-", "_"), name.replace("-", "_"))
    default = ServerSettings.model_fields[field].default
    value = VALUES.get(field, "true" if default is False else "false" if default is True else "3")
    monkeypatch.setenv(f"POLYDRAFT_{name.replace('-', '_').upper()}", value)
    by_environment = getattr(settings({}), field)
    monkeypatch.undo()
    assert by_environment != default
    file = tmp_path / "server.toml"
    typed = isinstance(by_environment, (int, float))
    for key in (name, name.replace("-", "_")):
        file.write_text(f"{key} = {value if typed else repr(value)}\n")
        assert getattr(settings({}, file), field) == by_environment


def test_setting_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('models = ["a"]\nmodel = ["b"]\n')
    with pytest.raises(InvalidArgument, match="twice"):
        settings({}, file)
