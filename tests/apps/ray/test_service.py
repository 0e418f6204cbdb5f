"""The official client against replicas on two nodes: three calls, streams, disconnects, a full queue, a killed replica.

Every answer is compared with what the pipeline makes of the same seed in this process.
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
from ..server.reading import PROMPT, QUESTION, SENTENCES, asked, events, picture
from .farm import LONG, Farm

pytestmark = pytest.mark.cluster
LONGER = " ".join([SENTENCES] * 4)


@cache
def spoken(text: str, seed: int) -> bytes:
    return to_pcm16(load("tiny-speech")(text, voice="slt", seed=seed).audio)


@cache
def drawn(seed: int) -> bytes:
    return load("tiny-image")(PROMPT, seed=seed).image.tobytes()


@cache
def scene() -> Image.Image:
    return load("tiny-image")(PROMPT, seed=3).image


@cache
def answered(seed: int) -> str:
    return load("tiny-vlm")(scene(), QUESTION, seed=seed, max_new_tokens=48).text


def speak(client: openai.OpenAI, text: str, seed: int, **more: Any) -> Any:
    return client.audio.speech.create(
        model="tiny-speech", input=text, voice="slt", response_format="pcm", extra_body={"seed": seed} | more
    )


def test_three_calls(farm: Farm) -> None:
    client = farm.client(max_retries=0)
    assert {model.id for model in client.models.list()} == {"tiny-image", "tiny-speech", "tiny-vlm"}
    answer = client.images.generate(prompt=PROMPT, extra_body={"seed": 3})
    assert picture(answer.data[0].b64_json).tobytes() == drawn(3)
    assert answer.metrics["speculative_decoding"]["tokens"] == image_token_count()
    assert speak(client, SENTENCES, 5).content == spoken(SENTENCES, 5)
    said = client.chat.completions.create(model="tiny-vlm", messages=asked(scene()), seed=7, max_tokens=48)
    assert said.choices[0].message.content == answered(7)
    assert said.usage.completion_tokens > 0


def test_three_streams(farm: Farm) -> None:
    client = farm.client(max_retries=0)
    drawing = client.images.generate(prompt=PROMPT, stream=True, partial_images=2, extra_body={"seed": 3})
    *parts, whole = list(drawing)
    assert [part.type for part in parts] == ["image_generation.partial_image"] * 2
    assert picture(parts[0].b64_json).size == picture(whole.b64_json).size
    assert picture(parts[0].b64_json).tobytes() != picture(whole.b64_json).tobytes() == drawn(3)
    body = {"input": SENTENCES, "voice": "slt", "response_format": "pcm", "seed": 5}
    with farm.http.stream("POST", "/v1/audio/speech", json=body) as speech:
        pieces = list(speech.iter_raw())
    assert b"".join(pieces) == spoken(SENTENCES, 5) and len(pieces) > 1
    chunks = list(
        client.chat.completions.create(
            model="tiny-vlm", messages=asked(scene()), seed=7, max_tokens=48, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == answered(7)
    assert len(chunks) > 4 and chunks[-1].usage.completion_tokens > 0


def test_errors_are_those_of_the_service(farm: Farm) -> None:
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


def test_what_became_of_a_request_is_told_by_its_id(farm: Farm) -> None:
    answer = farm.http.post("/v1/audio/speech", json={"input": "Yes.", "seed": 1, "response_format": "flac"})
    told = farm.http.get(f"/v1/requests/{answer.headers['x-request-id']}")
    assert told.json()["state"] == "done" and told.json()["metrics"]["speculative_decoding"]["tokens"] > 0


def test_who_leaves_frees_the_row(farm: Farm) -> None:
    before = farm.outcomes().get("cancelled", 0)
    gone = sum(one["outcomes"].get("cancelled", 0) for one in farm.until(lambda: both(farm)).values())
    body = {"input": LONGER, "voice": "slt", "response_format": "pcm", "seed": 5, "speculative": False}
    with httpx.stream("POST", f"{farm.url}/v1/audio/speech", json=body, timeout=LONG) as speech:
        next(speech.iter_raw())
    farm.until(lambda: farm.outcomes().get("cancelled", 0) == before + 1)

    def freed() -> bool:
        there = both(farm)
        ended = sum(one["outcomes"].get("cancelled", 0) for one in there.values())
        return ended == gone + 1 and not any(one["under_way"] for one in there.values())

    farm.until(freed)


def both(farm: Farm) -> dict[int, dict[str, Any]]:
    """Both replicas, or nothing if one was not met."""
    there = farm.replicas()
    return there if len(there) == 2 else {}


def test_a_full_queue_is_told_and_retries_succeed(farm: Farm) -> None:
    client = farm.client(max_retries=40)
    before = farm.outcomes()

    def draw(seed: int) -> Any:
        return client.images.generate(prompt=PROMPT, n=6, extra_body={"seed": seed})

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(draw, (3, 3, 3, 3)))
    assert all(picture(answer.data[0].b64_json).tobytes() == drawn(3) for answer in answers)
    after = farm.outcomes()
    assert after["done"] == before["done"] + 4 and after["rejected"] > before["rejected"]


def test_a_killed_replica_loses_its_requests_and_a_retry_is_the_same(farm: Farm) -> None:
    failed = farm.outcomes().get("failed", 0)
    killed: list[int] = []

    whole = in_the_middle(farm, lambda: chat_plainly(farm), killed)
    assert whole == load("tiny-vlm")(scene(), QUESTION, seed=7, max_new_tokens=200, min_new_tokens=200).text
    assert farm.outcomes()["failed"] > failed and killed


def chat_plainly(farm: Farm) -> str:
    """A long answer that takes a while, and is not streamed."""
    return farm.client(max_retries=10).chat.completions.create(
        model="tiny-vlm", messages=asked(scene()), seed=7, max_tokens=200,
        extra_body={"min_tokens": 200, "speculative": False},
    ).choices[0].message.content  # fmt: skip


def in_the_middle(farm: Farm, ask: Callable[[], Any], killed: list[int]) -> Any:
    """What `ask` comes to, whose replica is killed as soon as it is at work."""
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        killed.append(farm.until(lambda: next((who for who, one in farm.replicas().items() if one["under_way"]), 0)))
        os.kill(killed[0], signal.SIGKILL)
        return asking.result(LONG)


def test_a_stream_whose_replica_is_killed_ends_with_an_error(farm: Farm) -> None:
    farm.until(lambda: both(farm))
    body = {
        "model": "tiny-vlm", "messages": asked(scene()), "seed": 7, "max_tokens": 200, "min_tokens": 200,
        "speculative": False, "stream": True,
    }  # fmt: skip
    with farm.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        text = next(lines)
        os.kill(farm.until(lambda: next((who for who, one in farm.replicas().items() if one["under_way"]), 0)), 9)
        text += "\n" + "\n".join(lines)
    *_, last = events(text)
    assert last["error"]["code"] == "replica_lost"


def test_signal_in_an_answer_drains_with_ray_unread() -> None:
    """A process of its own on a cluster of its own, whose standard error nobody reads any more."""
    command = [sys.executable, "-m", "polydraft", "serve", "--ray", "--port", "0", "--speech", "tiny-speech"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "POLYDRAFT_"))}
    body = {"input": LONGER, "voice": "slt", "response_format": "pcm", "seed": 5, "speculative": False}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean) as process:
        assert process.stderr is not None
        url = next(line for line in process.stderr if line.startswith("listening on ")).split()[-1]
        process.stderr.close()
        with httpx.stream("POST", f"{url}/v1/audio/speech", json=body, timeout=LONG) as answer:
            pieces = answer.iter_bytes()
            heard = [next(pieces)]
            process.send_signal(signal.SIGTERM)
            heard += pieces
        assert b"".join(heard) == spoken(LONGER, 5)
        assert process.wait(LONG) == 0
