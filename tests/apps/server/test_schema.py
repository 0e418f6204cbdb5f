"""Tests of the live OpenAPI document with schemathesis: responses match the document.

POLYDRAFT_SCHEMA_CASES=300 python -m pytest tests/apps/server/test_schema.py     # cases per operation and mode

POLYDRAFT_SCHEMA_REPORT=report.txt names a file to which a long run appends the counts of statuses and codes.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
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
from .reading import PROMPT

PATIENCE = 300  # Seconds; a case may ask for ten images.
CASES = int(os.environ.get("POLYDRAFT_SCHEMA_CASES", "6"))
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance, negative_data_rejection,
]  # fmt: skip


@pytest.fixture(scope="module")
def operations(live: Live) -> dict[str, Any]:
    schema = schemathesis.openapi.from_url(f"{live.url}/openapi.json")
    return {operation.ok().label: operation.ok() for operation in schema.get_all_operations()}


OF_MEANING = {"invalid_value", "unknown_method", "unsupported_method"}  # No schema can express these.
PROBES = ("GET /health", "GET /ready")  # Routes whose negative answers are no errors.
KNOWN: dict[str, list[Any]] = {
    "model": [None], "method": [None, "ar", "jacobi"], "voice": [None, "slt", "nova"], "prompt": [PROMPT],
    "input": ["Yes."], "n": [None, 1, 2], "size": ["auto", "128x128", "1024x1024"], "prime": [None],
    "negative_prompt": [None], "iterations": [None], "min_tokens": [None, 0, 1], "max_tokens": [None, 1, 3],
    "max_completion_tokens": [None, 2],
}  # fmt: skip
LABELS = [
    "POST /v1/images/generations", "POST /v1/audio/speech", "POST /v1/audio/transcriptions",
    "POST /v1/audio/translations", "POST /v1/chat/completions", "GET /v1/audio/voices",
    "GET /v1/models", "GET /v1/models/{model}", "GET /v1/requests/{id}", "GET /health", "GET /ready", "GET /metrics",
    "GET /version", "GET /",
]  # fmt: skip


def test_every_openapi_operation_is_tested(operations: dict[str, Any]) -> None:
    assert sorted(operations) == sorted(LABELS)


MAY_BE_WRONG = [label for label in LABELS if label.startswith("POST") or "{" in label]
TRIED = [(label, GenerationMode.POSITIVE) for label in LABELS]
TRIED += [(label, GenerationMode.NEGATIVE) for label in MAY_BE_WRONG]


@pytest.mark.parametrize(("label", "mode"), TRIED)
def test_openapi_document_matches_responses(
    operations: dict[str, Any], live: Live, label: str, mode: GenerationMode
) -> None:
    operation = operations[label]
    cases = operation.as_strategy(generation_mode=mode)

    counted: Counter[str] = Counter()

    @given(data=st.data())
    @settings(
        max_examples=CASES, derandomize=CASES < 50, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    def hold(data: st.DataObject) -> None:
        case = data.draw(cases)
        valid = mode is GenerationMode.POSITIVE
        if valid and isinstance(case.body, dict) and data.draw(st.booleans()):
            case.body = with_known_names(case.body, data)
        answer = case.call(base_url=live.url, timeout=PATIENCE)
        case.validate_response(answer, checks=CHECKS)
        error = answer.json()["error"] if answer.status_code >= 400 and label not in PROBES else None
        counted[f"{answer.status_code} {error['code']}" if error else str(answer.status_code)] += 1
        if error:
            assert set(error) == {"message", "type", "param", "code"}
            # Requests that the document allows may name unknown things or be empty; nothing else is wrong with them.
            assert not valid or answer.status_code == 404 or error["code"] in OF_MEANING, error

    hold()
    if CASES > 50:
        with Path(os.environ.get("POLYDRAFT_SCHEMA_REPORT", os.devnull)).open("a", encoding="utf-8") as report:
            report.write(f"{label} {mode.name.lower()}: {dict(counted)}\n")


def with_known_names(body: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """Return the body with existing names, so that more than names is tested."""
    return body | {name: data.draw(st.sampled_from(KNOWN[name])) for name in body.keys() & KNOWN.keys()}
