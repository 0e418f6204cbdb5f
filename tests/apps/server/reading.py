"""Helpers that build requests and parse responses."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from polydraft.modalities.speech.resampling import resample
from polydraft.modalities.speech.result import to_pcm16

PROMPT = "two frogs on a blue background"
SENTENCES = "Good day. Is that right?"
QUESTION = "Describe the picture."
NAVY = Image.new("RGB", (128, 128), "navy")  # Without an image all answers are one sentence.


def picture(b64_json: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(b64_json)))


def samples(content: bytes) -> tuple[np.ndarray, int]:
    """Return samples and sampling rate of an audio file with a header."""
    return soundfile.read(io.BytesIO(content), dtype="int16")


def as_pcm(audio: np.ndarray) -> bytes:
    """Return 16 kHz audio of an embedded voice in the form of `response_format: "pcm"`."""
    return to_pcm16(resample(audio, 16_000, 24_000))


def data_url(image: Image.Image, kind: str = "png") -> str:
    file = io.BytesIO()
    image.save(file, kind)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def question_messages(image: Image.Image | None, question: str = QUESTION) -> list[dict[str, Any]]:
    """Return the messages of one question about an image."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": question}]
    if image is not None:
        parts.insert(0, {"type": "image_url", "image_url": {"url": data_url(image)}})
    return [{"role": "user", "content": parts}]


def events(text: str) -> list[dict[str, Any]]:
    """Return the JSON data of server-sent events."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def problem(response: Any) -> dict[str, Any]:
    """Return the error of a response and check its envelope."""
    body = response.json()
    assert list(body) == ["error"] and set(body["error"]) == {"message", "type", "param", "code"}, body
    assert response.headers["content-type"] == "application/json" and response.headers["x-request-id"]
    assert body["error"]["message"].endswith(".") and len(body["error"]["message"]) < 700
    return body["error"]
