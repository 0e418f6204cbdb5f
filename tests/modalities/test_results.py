"""Results of every modality: one line without tensors, JSON, files, and what notebooks show."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from polydraft.core.errors import OutputUnwritable
from polydraft.modalities.image.pipeline import generate_image
from polydraft.modalities.image.result import ImageResult
from polydraft.modalities.loading import load
from polydraft.modalities.speech.pipeline import generate_speech
from polydraft.modalities.speech.result import SpeechResult
from polydraft.modalities.transcription.pipeline import transcribe
from polydraft.modalities.transcription.result import Transcription
from polydraft.modalities.vlm.pipeline import chat
from polydraft.modalities.vlm.result import ChatResult

from .transcription.tiny_whisper import SAMPLE_RATE, write_tiny_whisper

MAX_LENGTH = 400  # characters of a representation


@pytest.fixture(scope="module")
def image() -> ImageResult:
    return generate_image(["a cat", "two frogs"], method="ar", dtype="float32")


@pytest.fixture(scope="module")
def speech() -> SpeechResult:
    return generate_speech("Yes & no.", method="ar", dtype="float32")


@pytest.fixture(scope="module")
def answer() -> ChatResult:
    picture = Image.new("RGB", (64, 64))
    return chat(picture, ["What is this?", "And here?"], max_new_tokens=4, method="ar", dtype="float32")


@pytest.fixture(scope="module")
def transcription(tmp_path_factory: pytest.TempPathFactory) -> Transcription:
    folder = write_tiny_whisper(tmp_path_factory.mktemp("whisper") / "tiny")
    sound = np.sin(np.arange(SAMPLE_RATE) / 9).astype(np.float32)
    return transcribe((sound, SAMPLE_RATE), model=folder, language="en", method="ar", temperature=0.0, dtype="float32")


@pytest.fixture
def result(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("result", ["image", "speech", "answer", "transcription"], indirect=True)
def test_result_is_shown_as_one_line(result: Any) -> None:
    text = repr(result)
    assert text.startswith(f"<{type(result).__name__}: ") and len(text) < MAX_LENGTH
    assert not set(text) & set("\n[") and "tensor" not in text and "array" not in text
    for part in (result.model, result.stats.method, f"{result.stats.tokens} tokens", "τ 1.00"):
        assert part in text


@pytest.mark.parametrize("result", ["image", "speech", "answer", "transcription"], indirect=True)
def test_result_is_a_dictionary_of_json(result: Any) -> None:
    value = result.to_dict()
    assert json.loads(json.dumps(value)) == value
    if not isinstance(result, Transcription):  # whose dictionary has the form of OpenAI's
        assert value["stats"] == json.loads(json.dumps(result.stats.to_dict())) and value["model"] == result.model


def test_image_is_shown_as_png(image: ImageResult) -> None:
    shown = Image.open(io.BytesIO(image._repr_png_()))
    assert shown.format == "PNG" and shown.tobytes() == image.contact_sheet().tobytes()
    assert "2 images of 128x128" in repr(image)
    assert [image.to_dict()[name] for name in ("prompts", "seeds")] == [["a cat", "two frogs"], [0, 1]]


def test_speech_is_shown_as_player(speech: SpeechResult) -> None:
    html = speech._repr_html_()
    assert html is not None and html.endswith("<p>Yes &amp; no.</p>")
    source = html.partition("base64,")[2].partition('"')[0]
    samples, rate = soundfile.read(io.BytesIO(b64decode(source)), dtype="float32")
    assert rate == speech.sample_rate
    assert np.abs(samples - speech.audio.clip(-1, 1)).max() < 2 / 2**15


def test_chat_saves_answers_and_statistics(answer: ChatResult, tmp_path: Path) -> None:
    assert answer.save(tmp_path / "answers.txt").read_text("utf-8") == "\n\n".join(answer.texts) + "\n"
    value = json.loads(answer.save(tmp_path / "answers.json").read_text("utf-8"))
    assert value["texts"] == answer.texts and value["rows"][1]["tokens"] == answer.row_stats[1].tokens
    with pytest.raises(OutputUnwritable, match="end the name in .txt, .json"):
        answer.save(tmp_path / "answers.png")


def test_steps_show_no_tensors() -> None:
    stream = load("tiny-speech", method="ar", dtype="float32").stream("Yes.")
    chunk = next(stream)
    assert "array" not in repr(chunk) and f"codes={chunk.codes}" in repr(chunk)


def test_pipeline_shows_model_method_and_place() -> None:
    pipe = load("tiny-speech", method="ar", dtype="float32", device="cpu")
    assert repr(pipe) == "SpeechPipeline('tiny-speech', method='ar', device='cpu', dtype='float32')"
