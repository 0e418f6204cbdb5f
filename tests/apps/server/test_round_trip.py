"""What the server answers is a message that it takes: by the schemas, whatever they may hold, and over three turns."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from polydraft.apps.server.api.schemas.chat import AnswerMessage, AssistantMessage, ChatRequest

from .live import Live
from .reading import PROMPT, asked

QUESTION: dict[str, Any] = {"role": "user", "content": "Why?"}
# what clients make of an answer when they write it down
FOREIGN: list[dict[str, Any]] = [
    {"refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": None},
    {"annotations": [], "tool_calls": []}, {"annotations": [{"type": "url_citation"}]}, {"reasoning_content": None},
    {"content": None}, {"content": ""}, {"content": [{"type": "text", "text": "Two."}]},
]  # fmt: skip


ANSWERS: Any = st.builds(AnswerMessage, **dict.fromkeys(AnswerMessage.model_fields, ...))  # of the fields' types


@given(st.lists(ANSWERS, min_size=1, max_size=3))
@settings(max_examples=80, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_request_any_answer_by_its_model_is_taken(answers: list[AnswerMessage]) -> None:
    for answer in answers:
        messages = [QUESTION, answer.model_dump(mode="json"), QUESTION]
        ChatRequest.model_validate({"messages": messages})


def test_assistant_message_is_answer_message_and_more() -> None:
    """Whatever field an answer gets, requests have it, since one is made of the other."""
    assert issubclass(AssistantMessage, AnswerMessage)
    assert AnswerMessage.model_fields.keys() <= AssistantMessage.model_fields.keys()
    long = AnswerMessage(content="x" * 500_000)
    ChatRequest.model_validate({"messages": [QUESTION, long.model_dump(), QUESTION]})


@pytest.mark.parametrize("fields", FOREIGN, ids=str)
def test_request_answer_as_clients_keep_it_is_answered(live: Live, fields: dict[str, Any]) -> None:
    kept = {"role": "assistant", "content": "Two."} | fields
    body = {"messages": [*asked(None), kept, QUESTION], "max_tokens": 2, "seed": 1}
    answer = live.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("stream", [False, True])
def test_openai_client_three_turns_about_picture(live: Live, client: openai.OpenAI, stream: bool) -> None:
    """The messages of answers are appended as they are, or as what their models are dumped to."""
    frogs: Image.Image = live.alone("image", prompt=PROMPT, n=2, seed=5).image
    messages: list[Any] = asked(frogs, "How many frogs are there?")
    said: list[str] = []
    for number, question in enumerate(("What is the background?", "Describe the picture.", "")):
        options: dict[str, Any] = {"model": "tiny-vlm", "messages": messages, "seed": 1}
        if stream:
            with client.chat.completions.stream(**options) as events:
                for _ in events:
                    pass
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**options).choices[0].message
        said.append(message.content)
        messages = [*messages, message if number % 2 else message.model_dump(), {"role": "user", "content": question}]
    first = [{"type": "image", "image": frogs}, {"type": "text", "text": "How many frogs are there?"}]
    alone: list[dict[str, Any]] = [
        {"role": "user", "content": first},
        {"role": "assistant", "content": said[0]}, {"role": "user", "content": "What is the background?"},
        {"role": "assistant", "content": said[1]}, {"role": "user", "content": "Describe the picture."},
    ]  # fmt: skip
    assert said[2] == live.alone("vlm", image=None, messages=alone, seed=1).text and all(said)
