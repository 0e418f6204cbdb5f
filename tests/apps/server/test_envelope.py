"""What errors say of a request that FastAPI refused, without a server."""

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
    async def chat(asked: ChatRequest) -> dict[str, bool]:
        return {"taken": True}

    return TestClient(app)


GOOD: dict[str, Any] = {"messages": [{"role": "user", "content": "?"}]}
NAMES = ("query", "body", "path", "header", "cookie", "constrained-str", "list[str]", "a[0]", "zoom")


@pytest.mark.parametrize("name", NAMES)
def test_unknown_field_is_named_whatever_it_is_called(client: TestClient, name: str) -> None:
    answer = client.post("/chat", json=GOOD | {name: 1})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["code"], error["param"]) == ("extra_forbidden", name)
    assert error["message"].startswith(f"{name}: this field is unknown here")


@pytest.mark.parametrize("name", NAMES)
def test_unknown_field_inside_is_named_with_its_place(client: TestClient, name: str) -> None:
    message = {"role": "user", "content": "?", name: 1}
    error = client.post("/chat", json={"messages": [message]}).json()["error"]
    assert error["param"] == f"messages.0.{name}"


def test_union_steps_are_left_out_of_the_place(client: TestClient) -> None:
    error = client.post("/chat", json=GOOD | {"stop": [""]}).json()["error"]
    assert error["param"] == "stop.0"


@pytest.mark.parametrize("content", [b"[]", b"null", b'"text"'])
def test_body_that_is_no_object_is_told(client: TestClient, content: bytes) -> None:
    answer = client.post("/chat", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "not a JSON object" in answer.json()["error"]["message"]


def test_body_that_is_no_json_is_told(client: TestClient) -> None:
    answer = client.post("/chat", content=b"{", headers={"content-type": "application/json"})
    assert json.loads(answer.content)["error"]["code"] == "invalid_json"
