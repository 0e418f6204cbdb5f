"""Transcripts on a cluster: files cross to a replica, texts come back, and refusals keep their status."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile

from polydraft.modalities.loading import load

from ...modalities.transcription.tiny_whisper import SAMPLE_RATE, tone, write_tiny_whisper
from .farm import Farm

pytestmark = pytest.mark.cluster
MODEL = "tiny-whisper"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_whisper(tmp_path_factory.mktemp("models") / MODEL)


@pytest.fixture(scope="module")
def farm(nodes: None, folder: Path) -> Iterator[Farm]:
    """Serve the model with one replica and a small limit."""
    serving = Farm({"transcription": str(folder), "replicas": 1, "rows": 2, "max_queue": 4, "max_sound_seconds": 9})
    try:
        yield serving
    finally:
        serving.close()


def sound_file(seconds: float) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, tone(seconds), SAMPLE_RATE, format="FLAC")
    return file.getvalue()


def test_transcripts_of_a_replica_match_pipeline(farm: Farm, folder: Path) -> None:
    sound = sound_file(5.0)
    wanted = load(folder)(sound, seed=3, temperature=0.7)
    given: dict[str, Any] = {"model": MODEL, "temperature": 0.7, "extra_body": {"seed": 3}}
    client = farm.client(max_retries=0)
    answer = client.audio.transcriptions.create(file=("a.flac", sound), response_format="verbose_json", **given)
    assert answer.text == wanted.text and len(wanted.segments) > 1
    assert [each.model_dump() for each in answer.segments or ()] == wanted.to_dict()["segments"]
    *deltas, done = client.audio.transcriptions.create(file=("a.flac", sound), stream=True, **given)
    assert done.type == "transcript.text.done" and done.text == wanted.text and done.usage is not None
    assert "".join(event.delta for event in deltas if event.type == "transcript.text.delta") == wanted.text
    assert done.usage.input_tokens == 3 * 3  # of every window


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [(b"text" * 99, 415, "unsupported_media_type"), (sound_file(10.0), 413, "too_long"), (b"", 400, "invalid_value")],
    ids=["text", "long", "empty"],
)
def test_refusals_of_a_replica_keep_their_status(farm: Farm, content: bytes, status: int, code: str) -> None:
    answer = farm.http.post("/v1/audio/transcriptions", files={"file": ("a.flac", content)})
    assert answer.status_code == status and answer.json()["error"]["code"] == code
