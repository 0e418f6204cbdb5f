"""schemathesis on the live OpenAPI document: what it says is what happens.

POLYDRAFT_SCHEMA_CASES=300 python -m pytest tests/apps/server/test_schema.py     # so many of each operation and mode
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from .live import Live

PATIENCE = 300  # seconds: a case may ask for ten pictures
CASES = int(os.environ.get("POLYDRAFT_SCHEMA_CASES", "6"))
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance, negative_data_rejection,
]  # fmt: skip


@pytest.fixture(scope="module")
def operations(live: Live) -> dict[str, Any]:
    schema = schemathesis.openapi.from_url(f"{live.url}/openapi.json")
    return {operation.ok().label: operation.ok() for operation in schema.get_all_operations()}


LABELS = [
    "POST /v1/images/generations", "POST /v1/audio/speech", "POST /v1/chat/completions", "GET /v1/audio/voices",
    "GET /v1/models", "GET /v1/models/{model}", "GET /v1/requests/{id}", "GET /health", "GET /ready", "GET /metrics",
    "GET /version", "GET /",
]  # fmt: skip


def test_all_operations_are_tried(operations: dict[str, Any]) -> None:
    assert sorted(operations) == sorted(LABELS)


MAY_BE_WRONG = [label for label in LABELS if label.startswith("POST") or "{" in label]
TRIED = [(label, GenerationMode.POSITIVE) for label in LABELS]
TRIED += [(label, GenerationMode.NEGATIVE) for label in MAY_BE_WRONG]


@pytest.mark.parametrize(("label", "mode"), TRIED)
def test_the_document_is_true(operations: dict[str, Any], live: Live, label: str, mode: GenerationMode) -> None:
    operation = operations[label]
    cases = operation.as_strategy(generation_mode=mode)

    @given(data=st.data())
    @settings(
        max_examples=CASES, derandomize=CASES < 50, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    def hold(data: st.DataObject) -> None:
        case = data.draw(cases)
        answer = case.call(base_url=live.url, timeout=PATIENCE)
        case.validate_response(answer, checks=CHECKS)
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    hold()
