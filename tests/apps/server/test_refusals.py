"""Invalid requests get a 4xx status, the error envelope and one sentence, and the server keeps running."""

from __future__ import annotations

import base64
import io
import json
import math
import struct
import zlib
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from .live import Live
from .reading import PROMPT, data_url, problem, question_messages

IMAGES, SPEECH, CHAT = "/v1/images/generations", "/v1/audio/speech", "/v1/chat/completions"
GOOD: dict[str, dict[str, Any]] = {
    IMAGES: {"prompt": PROMPT}, SPEECH: {"input": "Yes."}, CHAT: {"messages": question_messages(None)},
}  # fmt: skip


def bomb(wide: int, high: int) -> str:
    """Return a PNG of a few bytes whose header claims a huge size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0))
    file = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(file).decode()


def tiff() -> str:
    """Return an image in an unsupported format, labelled as PNG."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "TIFF")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def image_message(url: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


WHOLE = data_url(Image.effect_noise((40, 30), 80))
WRONG: list[tuple[str, dict[str, Any], str]] = [
    (IMAGES, {"prompt": ""}, "prompt"), (IMAGES, {"prompt": 5}, "prompt"), (IMAGES, {"prompt": "xyzzy"}, "nothing"),
    (IMAGES, {"prompt": "cat " * 999}, "prompt"), (IMAGES, {"n": 0}, "n:"), (IMAGES, {"n": 10**30}, "n:"),
    (IMAGES, {"n": 2.5}, "n:"), (IMAGES, {"n": True}, "n:"), (IMAGES, {"n": "2"}, "n:"),
    (IMAGES, {"size": "1000x1000"}, "128x128"), (IMAGES, {"size": "../../etc"}, "size"),
    (IMAGES, {"response_format": "file"}, "b64_json"), (IMAGES, {"output_format": "bmp"}, "webp"),
    (IMAGES, {"partial_images": 4}, "partial_images"), (IMAGES, {"background": "transparent"}, "opaque"),
    (IMAGES, {"negative_prompt": "a dog"}, "negative_prompt"), (IMAGES, {"prime": "cat.png"}, "data:"),
    (IMAGES, {"prime": WHOLE}, "prime"), (IMAGES, {"iterations": 4}, "iterations"),
    (IMAGES, {"seed": -1}, "seed"), (IMAGES, {"seed": 2**70}, "seed"), (IMAGES, {"method": "warp"}, "warp"),
    (IMAGES, {"method": "vadusa"}, "vadusa"), (IMAGES, {"method": "jacobi(window=0)"}, "window"),
    (IMAGES, {"method": "jacobi", "speculative": False}, "speculative"), (IMAGES, {"colour": "red"}, "colour"),
    (IMAGES, {"guidance_scale": -1}, "guidance_scale"), (IMAGES, {"top_k": -1}, "top_k"),
    (IMAGES, {"min_p": 1}, "min_p"), (IMAGES, {"min_p": -0.1}, "min_p"),
    (IMAGES, {"prompt": "\ud800 a cat"}, "prompt"), (IMAGES, {"prompt": [PROMPT]}, "prompt"),
    (SPEECH, {"input": ""}, "input"), (SPEECH, {"input": "y" * 4097}, "4096"), (SPEECH, {"input": "😀"}, "Latin"),
    (SPEECH, {"voice": "alloy2"}, "slt"), (SPEECH, {"voice": "../slt"}, "slt"), (SPEECH, {"speed": 0.1}, "speed"),
    (SPEECH, {"response_format": "ogg"}, "flac"), (SPEECH, {"stream_format": "ws"}, "sse"),
    (CHAT, {"messages": []}, "messages"), (CHAT, {"messages": "hi"}, "messages"), (CHAT, {"messages": [5]}, "messages"),
    (CHAT, {"messages": [{"role": "user"}]}, "content"),
    (CHAT, {"messages": [{"role": "wizard", "content": "hi"}]}, "role"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "type"),
    (CHAT, {"messages": [{"role": "assistant", "content": "hi"}]}, "assistant"), (CHAT, {"n": 9}, "n:"),
    (CHAT, {"max_tokens": 0}, "max_tokens"), (CHAT, {"max_tokens": 10**9}, "max_tokens"),
    (CHAT, {"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
    (CHAT, {"frequency_penalty": 0.5}, "repetition_penalty"), (CHAT, {"presence_penalty": -1}, "repetition_penalty"),
    (CHAT, {"logprobs": True}, "probabilities"), (CHAT, {"top_logprobs": 3}, "probabilities"),
    (CHAT, {"logit_bias": {"5": 3}}, "logit_bias"), (CHAT, {"tools": [{"type": "function"}]}, "tools"),
    (CHAT, {"tool_choice": "required"}, "tools"), (CHAT, {"functions": [{"name": "f"}]}, "tools"),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {}}}, "free text"),
    (CHAT, {"response_format": {"type": "json_object"}}, "free text"), (CHAT, {"modalities": ["audio"]}, "text"),
    (CHAT, {"audio": {"voice": "alloy"}}, "/v1/audio/speech"),
    (CHAT, {"messages": [*question_messages(None), {"role": "tool", "content": "4"}, *question_messages(None)]},
     "role"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}, *question_messages(None)]}, "tools"),
    (CHAT, {"n": 8, "messages": [question_messages(Image.new("RGB", (8, 8)))[0]] * 3}, "2 pictures"),
    (CHAT, {"messages": question_messages(None, "y" * 19_000)}, "positions"),
    (CHAT, image_message("https://example.org/cat.png"), "data:"), (CHAT, image_message("file:///etc/passwd"), "data:"),
    (CHAT, image_message("http://127.0.0.1:22/"), "data:"), (CHAT, image_message("/etc/passwd"), "data:"),
    (CHAT, image_message("data:text/html;base64,AAAA"), "no image"), (CHAT, image_message(WHOLE[:-400]), "whole PNG"),
    (CHAT, image_message("data:image/png;base64,A"), "picture"),
    (CHAT, image_message("data:image/png;base64,AAAA"), "whole PNG"),
    (CHAT, image_message(tiff()), "is TIFF"), (CHAT, image_message(bomb(10_000, 10_000)), "16,000,000"),
    (CHAT, image_message(bomb(2**31 - 1, 2**31 - 1)), "picture"), (CHAT, image_message(bomb(0, 0)), "picture"),
    (CHAT, image_message(data_url(Image.new("1", (10_000, 10_000)))), "16,000,000"),
    (CHAT, image_message(data_url(Image.new("1", (1, 20_000)))), "nearer to a square"),
    (CHAT, image_message(data_url(Image.new("1", (20_000, 1)))), "nearer to a square"),
    (CHAT, image_message(data_url(Image.new("1", (1, 200_000)))), "nearer to a square"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "wrong", "word"), WRONG, ids=lambda value: str(value)[:40])
def test_invalid_field_is_reported_in_one_sentence(live: Live, path: str, wrong: dict[str, Any], word: str) -> None:
    content = json.dumps(GOOD[path] | wrong)  # JSON in ASCII keeps lone surrogates.
    answer = live.http.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    error = problem(answer)
    assert word in error["message"] and error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_non_finite_numbers_are_refused(live: Live, path: str, number: float) -> None:
    content = json.dumps(GOOD[path] | {"temperature": number})
    answer = live.http.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "temperature" in problem(answer)["message"]


BODIES = [b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"prompt": "a cat"', b"prompt=cat"]


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("content", BODIES, ids=lambda content: repr(content[:12]))
def test_bodies_other_than_json_objects_are_refused(live: Live, path: str, content: bytes) -> None:
    answer = live.http.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and problem(answer)["code"]


def test_wrong_form_method_path_model_are_refused(live: Live) -> None:
    form = live.http.post(IMAGES, data={"prompt": PROMPT})
    assert form.status_code == 400 and problem(form)
    for method, path, status in (
        ("GET", IMAGES, 405), ("DELETE", "/v1/models", 405), ("GET", "/v1/nothing", 404), ("POST", "/", 405),
        ("GET", "/v1/models/..%2f..%2fetc", 404), ("GET", "/v1/requests/none", 404),
    ):  # fmt: skip
        answer = live.http.request(method, path)
        assert answer.status_code == status and problem(answer)
    assert "POST" in live.http.get(IMAGES).headers["allow"]
    unknown = live.http.post(CHAT, json=GOOD[CHAT] | {"model": "gpt-9"})
    assert unknown.status_code == 404 and problem(unknown)["code"] == "model_not_found"
    other = live.http.post(CHAT, json=GOOD[CHAT] | {"model": "tiny-image"})
    assert other.status_code == 404 and "tiny-vlm" in problem(other)["message"]


@pytest.mark.parametrize("has_length", [True, False])
def test_too_large_body_is_refused(live: Live, has_length: bool) -> None:
    """Refuse it with a declared length and in chunks."""
    size = live.settings.max_body + 1
    pieces = (b"x" * 2**20 for _ in range(size // 2**20 + 1))
    try:
        answer = live.http.post(CHAT, content=bytes(size) if has_length else pieces)
    except (httpx.WriteError, httpx.RemoteProtocolError):
        return  # The server closed the connection before the body was sent.
    assert answer.status_code == 413 and problem(answer)["code"] == "body_too_large"


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = {
    IMAGES: ("prompt", "n", "size", "output_format", "stream", "seed", "top_p", "method", "guidance_scale"),
    SPEECH: ("input", "voice", "speed", "response_format", "stream_format", "temperature", "speculative"),
    CHAT: ("messages", "max_tokens", "stream", "stream_options", "temperature", "repetition_penalty", "n"),
}


@given(data=st.data())
@settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
def test_random_field_values_are_refused(live: Live, data: st.DataObject) -> None:
    """Check that random values are refused with the error envelope."""
    path = data.draw(st.sampled_from(list(GOOD)))
    body = GOOD[path] | {data.draw(st.sampled_from(FIELDS[path])): data.draw(junk)} | {"model": "none-such"}
    answer = live.http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code in (400, 404)
    problem(answer)


EXTREMES = [
    {"temperature": 5e-324}, {"temperature": 2, "top_p": 5e-324}, {"top_p": 0}, {"top_k": 1_000_000},
    {"temperature": 1e-30, "top_k": 1, "top_p": 1e-30}, {"repetition_penalty": 10, "temperature": 2.0},
    {"repetition_penalty": 0.1, "temperature": 0}, {"seed": 2**53 - 1}, {"min_tokens": 6},
]  # fmt: skip


@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
def test_extremes_that_are_allowed_are_answered(live: Live, extreme: dict[str, Any]) -> None:
    answer = live.http.post(CHAT, json={"messages": question_messages(None), "max_tokens": 6} | extreme)
    assert answer.status_code == 200, answer.text
    if extreme.get("min_tokens"):
        assert answer.json()["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(
    ("path", "body", "meant"),
    [
        ("/v1/images/generations", {"prompt": "a cat", "methd": "ar"}, "did you mean 'method'?"),
        ("/v1/audio/speech", {"input": "Yes.", "voise": "rms"}, "did you mean 'voice'?"),
        ("/v1/images/generations", {"prompt": "a cat", "model": "tiny-imge"}, "did you mean 'tiny-image'?"),
        ("/v1/images/generations", {"prompt": "a cat", "method": "jacoby"}, "did you mean 'jacobi'?"),
        ("/v1/audio/speech", {"input": "Yes.", "voice": "rns"}, "did you mean 'rms'?"),
    ],
)
def test_misspelt_name_is_answered_with_the_closest(live: Live, path: str, body: dict[str, Any], meant: str) -> None:
    answer = live.http.post(path, json=body)
    assert 400 <= answer.status_code < 500 and meant in answer.json()["error"]["message"]
