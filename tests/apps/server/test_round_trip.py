"""Messages of answers are accepted in later requests; `test_clients.py` checks it with real clients."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polydraft.apps.server.api.schemas.chat import AnswerMessage, AssistantMessage, ChatRequest

from .live import Live
from .reading import question_messages

QUESTION: dict[str, Any] = {"role": "user", "content": "Why?"}
# Answer messages as clients store them.
FOREIGN: list[dict[str, Any]] = [
    {"refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": None},
    {"annotations": [], "tool_calls": []}, {"annotations": [{"type": "url_citation"}]}, {"reasoning_content": None},
    {"content": None}, {"content": ""}, {"content": [{"type": "text", "text": "Two."}]},
]  # fmt: skip


ANSWERS: Any = st.builds(AnswerMessage, **dict.fromkeys(AnswerMessage.model_fields, ...))  # By the fields' types.


@given(st.lists(ANSWERS, min_size=1, max_size=3))
@settings(max_examples=80, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_request_accepts_any_dumped_answer(answers: list[AnswerMessage]) -> None:
    for answer in answers:
        messages = [QUESTION, answer.model_dump(mode="json"), QUESTION]
        ChatRequest.model_validate({"messages": messages})


def test_assistant_message_has_all_answer_fields() -> None:
    """Check that request messages derive from answer messages and have all their fields."""
    assert issubclass(AssistantMessage, AnswerMessage)
    assert AnswerMessage.model_fields.keys() <= AssistantMessage.model_fields.keys()
    long = AnswerMessage(content="x" * 500_000)
    ChatRequest.model_validate({"messages": [QUESTION, long.model_dump(), QUESTION]})


@pytest.mark.parametrize("fields", FOREIGN, ids=str)
def test_request_with_client_stored_answer_is_answered(live: Live, fields: dict[str, Any]) -> None:
    kept = {"role": "assistant", "content": "Two."} | fields
    body = {"messages": [*question_messages(None), kept, QUESTION], "max_tokens": 2, "seed": 1}
    answer = live.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
