"""Three turns about an image with widely used clients; all get the model's answers to these messages.

LangChain and llm are in the extra `clients`. OpenAI's Node client is found where NODE_PATH says: npm install openai.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from PIL import Image

from .live import LONG, Live
from .reading import PROMPT, data_url

QUESTIONS = ["How many frogs are there?", "What is the background?", "Describe the picture."]
STREAMED = [False, True]
Answers = list[str]


@pytest.fixture(scope="module")
def frogs(live: Live) -> Image.Image:
    return live.run_pipeline("image", prompt=PROMPT, n=2, seed=5).image


@pytest.fixture(scope="module")
def expected(live: Live, frogs: Image.Image) -> Answers:
    """Return the pipeline's answers with the image before the first question."""
    return pipeline_answers(live, [{"type": "image", "image": frogs}, {"type": "text", "text": QUESTIONS[0]}])


def pipeline_answers(live: Live, first: list[dict[str, Any]]) -> Answers:
    """Return the pipeline's answers to the questions; `first` are the parts of the first one."""
    turns: list[dict[str, Any]] = []
    answers: Answers = []
    for number, question in enumerate(QUESTIONS):
        turns.append({"role": "user", "content": [{"type": "text", "text": question}] if number else first})
        answers.append(live.run_pipeline("vlm", image=None, messages=list(turns), seed=1).text)
        turns.append({"role": "assistant", "content": answers[-1]})
    assert all(answers)
    return answers


def parts(frogs: Image.Image, number: int) -> Any:
    """Return the content of a question in OpenAI's form; the first one has the image."""
    if number:
        return QUESTIONS[number]
    return [{"type": "image_url", "image_url": {"url": data_url(frogs)}}, {"type": "text", "text": QUESTIONS[0]}]


def streamed_message(client: openai.OpenAI, options: dict[str, Any]) -> Any:
    with client.chat.completions.stream(**options) as events:
        return events.get_final_completion().choices[0].message


def whole_message(client: openai.OpenAI, options: dict[str, Any]) -> Any:
    return client.chat.completions.create(**options).choices[0].message


@pytest.mark.parametrize("kept", ["model", "dump"])
@pytest.mark.parametrize("ask", [whole_message, streamed_message])
def test_openai_python_client_three_turns(
    client: openai.OpenAI, frogs: Image.Image, expected: Answers, ask: Callable[..., Any], kept: str
) -> None:
    """Append the messages of answers unchanged or as dumped models."""
    messages: list[Any] = []
    answers: Answers = []
    for number in range(3):
        messages.append({"role": "user", "content": parts(frogs, number)})
        message = ask(client, {"model": "tiny-vlm", "messages": messages, "seed": 1})
        answers.append(message.content)
        messages.append(message.model_dump() if kept == "dump" else message)
    assert answers == expected


@pytest.mark.parametrize("stream", STREAMED)
def test_langchain_three_turns(live: Live, frogs: Image.Image, expected: Answers, stream: bool) -> None:
    langchain_openai = pytest.importorskip("langchain_openai", reason="it is in the extra clients")
    messages_of = pytest.importorskip("langchain_core.messages")
    chat = langchain_openai.ChatOpenAI(
        model="tiny-vlm", base_url=f"{live.url}/v1", api_key="unused", seed=1, max_retries=0, timeout=LONG
    )
    messages: list[Any] = []
    answers: Answers = []
    for number in range(3):
        messages.append(messages_of.HumanMessage(content=parts(frogs, number)))
        if stream:
            chunks = list(chat.stream(messages))
            answer = sum(chunks[1:], chunks[0])
        else:
            answer = chat.invoke(messages)
        answers.append(answer.content)
        messages.append(answer)
    assert answers == expected


@pytest.mark.parametrize("stream", STREAMED)
def test_llm_three_turns(
    live: Live, frogs: Image.Image, stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send the image after the text, which this prompt form allows."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    llm = pytest.importorskip("llm", reason="it is in the extra clients")
    models = pytest.importorskip("llm.default_plugins.openai_models")
    file = tmp_path / "frogs.png"
    frogs.save(file)
    model = models.Chat("tiny-vlm", key="unused", api_base=f"{live.url}/v1", vision=True)
    conversation = model.conversation()
    answers = [
        conversation.prompt(
            question, attachments=[] if number else [llm.Attachment(path=str(file))], stream=stream, seed=1
        ).text()
        for number, question in enumerate(QUESTIONS)
    ]  # fmt: skip
    first = [{"type": "text", "text": QUESTIONS[0]}, {"type": "image", "image": frogs}]
    assert answers == pipeline_answers(live, first)


def test_openai_node_client_three_turns(live: Live, frogs: Image.Image, expected: Answers) -> None:
    node = shutil.which("node")
    if node is None or subprocess.run([node, "-e", "require('openai')"], capture_output=True).returncode:
        pytest.skip("node, or openai in NODE_PATH, is not there: npm install openai")
    script = Path(__file__).with_name("three_turns.js")
    payload = json.dumps({"picture": data_url(frogs), "questions": QUESTIONS})
    command = [node, str(script), f"{live.url}/v1"]
    done = subprocess.run(command, input=payload, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"whole": expected, "streamed": expected}
