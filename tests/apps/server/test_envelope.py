"""Error envelopes of requests that FastAPI refuses, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from polydraft.apps.server.api import envelope
from polydraft.apps.server.api.schemas.chat import ChatRequest


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    envelope.install(app)

    @app.post("/chat")
    async def chat(request: ChatRequest) -> dict[str, bool]:
        return {"taken": True}

    return TestClient(app)


GOOD: dict[str, Any] = {"messages": [{"role": "user", "content": "?"}]}
NAMES = ("query", "body", "path", "header", "cookie", "constrained-str", "list[str]", "a[0]", "zoom")


@pytest.mark.parametrize("name", NAMES)
def test_unknown_field_any_name_is_reported(client: TestClient, name: str) -> None:
    answer = client.post("/chat", json=GOOD | {name: 1})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["code"], error["param"]) == ("extra_forbidden", name)
    assert error["message"].startswith(f"{name}: this field is unknown here")


@pytest.mark.parametrize("name", NAMES)
def test_unknown_nested_field_is_reported_with_path(client: TestClient, name: str) -> None:
    message = {"role": "user", "content": "?", name: 1}
    error = client.post("/chat", json={"messages": [message]}).json()["error"]
    assert error["param"] == f"messages.0.{name}"


def test_error_path_omits_union_branches(client: TestClient) -> None:
    error = client.post("/chat", json=GOOD | {"stop": [""]}).json()["error"]
    assert error["param"] == "stop.0"


@pytest.mark.parametrize("content", [b"[]", b"null", b'"text"'])
def test_body_that_is_no_object_is_refused(client: TestClient, content: bytes) -> None:
    answer = client.post("/chat", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "not a JSON object" in answer.json()["error"]["message"]


def test_body_that_is_no_json_is_refused(client: TestClient) -> None:
    answer = client.post("/chat", content=b"{", headers={"content-type": "application/json"})
    assert json.loads(answer.content)["error"]["code"] == "invalid_json"
