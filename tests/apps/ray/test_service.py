"""The official client against replicas on two nodes: three calls, streams, disconnects, a full queue, a killed replica.

Every answer is compared with the pipeline's result for the same seed in this process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from polydraft.modalities.loading import load
from polydraft.modalities.speech.result import to_pcm16

from ...embedded import image_token_count
from ..server.reading import PROMPT, QUESTION, SENTENCES, events, picture, question_messages
from .farm import LONG, Farm

pytestmark = pytest.mark.cluster
LONGER = " ".join([SENTENCES] * 4)


@cache
def expected_audio(text: str, seed: int) -> bytes:
    return to_pcm16(load("tiny-speech")(text, voice="slt", seed=seed).audio)


@cache
def expected_image(seed: int) -> bytes:
    return load("tiny-image")(PROMPT, seed=seed).image.tobytes()


@cache
def scene() -> Image.Image:
    return load("tiny-image")(PROMPT, seed=3).image


@cache
def expected_answer(seed: int) -> str:
    return load("tiny-vlm")(scene(), QUESTION, seed=seed, max_new_tokens=48).text


def speak(client: openai.OpenAI, text: str, seed: int, **more: Any) -> Any:
    return client.audio.speech.create(
        model="tiny-speech", input=text, voice="slt", response_format="pcm", extra_body={"seed": seed} | more
    )


def test_openai_client_results_match_the_pipelines(farm: Farm) -> None:
    client = farm.client(max_retries=0)
    assert {model.id for model in client.models.list()} == {"tiny-image", "tiny-speech", "tiny-vlm"}
    answer = client.images.generate(prompt=PROMPT, extra_body={"seed": 3})
    assert picture(answer.data[0].b64_json).tobytes() == expected_image(3)
    assert answer.metrics["speculative_decoding"]["tokens"] == image_token_count()
    assert speak(client, SENTENCES, 5).content == expected_audio(SENTENCES, 5)
    completion = client.chat.completions.create(
        model="tiny-vlm", messages=question_messages(scene()), seed=7, max_tokens=48
    )
    assert completion.choices[0].message.content == expected_answer(7)
    assert completion.usage.completion_tokens > 0


def test_streamed_responses_match_the_pipelines(farm: Farm) -> None:
    client = farm.client(max_retries=0)
    drawing = client.images.generate(prompt=PROMPT, stream=True, partial_images=2, extra_body={"seed": 3})
    *parts, whole = list(drawing)
    assert [part.type for part in parts] == ["image_generation.partial_image"] * 2
    assert picture(parts[0].b64_json).size == picture(whole.b64_json).size
    assert picture(parts[0].b64_json).tobytes() != picture(whole.b64_json).tobytes() == expected_image(3)
    body = {"input": SENTENCES, "voice": "slt", "response_format": "pcm", "seed": 5}
    with farm.http.stream("POST", "/v1/audio/speech", json=body) as speech:
        pieces = list(speech.iter_raw())
    assert b"".join(pieces) == expected_audio(SENTENCES, 5) and len(pieces) > 1
    chunks = list(
        client.chat.completions.create(
            model="tiny-vlm", messages=question_messages(scene()), seed=7, max_tokens=48, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected_answer(7)
    assert len(chunks) > 4 and chunks[-1].usage.completion_tokens > 0


def test_errors_match_the_single_process_server(farm: Farm) -> None:
    client = farm.client(max_retries=0)
    for kind, status, call in (
        ("model_not_found", 404, lambda: client.images.generate(model="none", prompt=PROMPT)),
        ("unknown_method", 400, lambda: client.images.generate(prompt=PROMPT, extra_body={"method": "none"})),
        ("invalid_value", 400, lambda: client.audio.speech.create(model="tiny-speech", input="Yes.", voice="nobody")),
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            call()
        assert (caught.value.status_code, caught.value.code) == (status, kind)  # type: ignore[attr-defined]
    answer = farm.http.get("/v1/models/none")
    assert len(answer.headers.get_list("x-request-id")) == 1


def test_request_state_is_reported_by_id(farm: Farm) -> None:
    answer = farm.http.post("/v1/audio/speech", json={"input": "Yes.", "seed": 1, "response_format": "flac"})
    response = farm.http.get(f"/v1/requests/{answer.headers['x-request-id']}")
    assert response.json()["state"] == "done" and response.json()["metrics"]["speculative_decoding"]["tokens"] > 0


def test_disconnected_client_frees_the_row(farm: Farm) -> None:
    before = farm.outcomes().get("cancelled", 0)
    gone = sum(one["outcomes"].get("cancelled", 0) for one in farm.wait_for(lambda: both_replicas(farm)).values())
    body = {"input": LONGER, "voice": "slt", "response_format": "pcm", "seed": 5, "speculative": False}
    with httpx.stream("POST", f"{farm.url}/v1/audio/speech", json=body, timeout=LONG) as speech:
        next(speech.iter_raw())
    farm.wait_for(lambda: farm.outcomes().get("cancelled", 0) == before + 1)

    def is_freed() -> bool:
        there = both_replicas(farm)
        ended = sum(one["outcomes"].get("cancelled", 0) for one in there.values())
        return ended == gone + 1 and not any(one["under_way"] for one in there.values())

    farm.wait_for(is_freed)


def both_replicas(farm: Farm) -> dict[int, dict[str, Any]]:
    """Return the counts of both replicas, or nothing if a call did not reach one of them."""
    there = farm.replicas()
    return there if len(there) == 2 else {}


def test_full_queue_is_reported_and_retries_succeed(farm: Farm) -> None:
    client = farm.client(max_retries=40)
    before = farm.outcomes()

    def draw(seed: int) -> Any:
        return client.images.generate(prompt=PROMPT, n=6, extra_body={"seed": seed})

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(draw, (3, 3, 3, 3)))
    assert all(picture(answer.data[0].b64_json).tobytes() == expected_image(3) for answer in answers)
    after = farm.outcomes()
    assert after["done"] == before["done"] + 4 and after["rejected"] > before["rejected"]


def test_killed_replica_fails_requests_and_retry_matches(farm: Farm) -> None:
    failed = farm.outcomes().get("failed", 0)
    killed: list[int] = []

    whole = kill_replica_during(farm, lambda: chat_without_streaming(farm), killed)
    assert whole == load("tiny-vlm")(scene(), QUESTION, seed=7, max_new_tokens=200, min_new_tokens=200).text
    assert farm.outcomes()["failed"] > failed and killed


def chat_without_streaming(farm: Farm) -> str:
    """Return a long answer that is not streamed."""
    return farm.client(max_retries=10).chat.completions.create(
        model="tiny-vlm", messages=question_messages(scene()), seed=7, max_tokens=200,
        extra_body={"min_tokens": 200, "speculative": False},
    ).choices[0].message.content  # fmt: skip


def kill_replica_during(farm: Farm, ask: Callable[[], Any], killed: list[int]) -> Any:
    """Return the result of `ask`, killing its replica as soon as it starts to work."""
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        killed.append(farm.wait_for(lambda: next((who for who, one in farm.replicas().items() if one["under_way"]), 0)))
        os.kill(killed[0], signal.SIGKILL)
        return asking.result(LONG)


def test_stream_of_killed_replica_ends_with_error(farm: Farm) -> None:
    farm.wait_for(lambda: both_replicas(farm))
    body = {
        "model": "tiny-vlm", "messages": question_messages(scene()), "seed": 7, "max_tokens": 200, "min_tokens": 200,
        "speculative": False, "stream": True,
    }  # fmt: skip
    with farm.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        text = next(lines)
        os.kill(farm.wait_for(lambda: next((who for who, one in farm.replicas().items() if one["under_way"]), 0)), 9)
        text += "\n" + "\n".join(lines)
    *_, last = events(text)
    assert last["error"]["code"] == "replica_lost"


def test_signal_during_response_drains_with_stderr_closed() -> None:
    """Start a separate process with its own cluster, and close its standard error."""
    command = [sys.executable, "-m", "polydraft", "serve", "--ray", "--port", "0", "--speech", "tiny-speech"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "POLYDRAFT_"))}
    body = {"input": LONGER, "voice": "slt", "response_format": "pcm", "seed": 5, "speculative": False}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean) as process:
        assert process.stderr is not None
        url = next(line for line in process.stderr if line.startswith("listening on ")).split()[-1]
        process.stderr.close()
        with httpx.stream("POST", f"{url}/v1/audio/speech", json=body, timeout=LONG) as answer:
            pieces = answer.iter_bytes()
            received = [next(pieces)]
            process.send_signal(signal.SIGTERM)
            received += pieces
        assert b"".join(received) == expected_audio(LONGER, 5)
        assert process.wait(LONG) == 0
