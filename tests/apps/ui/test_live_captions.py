"""Captions of a microphone: what the page sends, and what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from polydraft.apps.ui.live import LONGEST_PIECE, LiveCaptions, Microphone, MicrophoneOptions
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.loading import load
from polydraft.modalities.speech.result import to_pcm16
from polydraft.modalities.transcription.pipeline import WhisperPipeline

from ...modalities.transcription.tiny_whisper import SAMPLE_RATE, tone, write_tiny_whisper

SOUND = tone(4.0, 3)
PIECES = [to_pcm16(SOUND[start : start + 12_000]) for start in range(0, len(SOUND), 12_000)]


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> WhisperPipeline:
    loaded: WhisperPipeline = load(write_tiny_whisper(tmp_path_factory.mktemp("whisper")), dtype="float32")
    return loaded


class StubEngine:
    """Engine of one model that computes where it is asked to."""

    draining = False

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe

    def model(self, name: str | None, modality: str) -> Any:
        return SimpleNamespace(pipe=self.pipe)

    async def compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


def post(captions: LiveCaptions, *requests: tuple[str, dict[str, Any]]) -> list[httpx.Response]:
    """Return the responses to requests one after the other; `{}` in a path is the last key."""
    app = FastAPI()
    app.include_router(captions.router())

    async def send() -> list[httpx.Response]:
        answers, key = [], ""
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            for path, options in requests:
                answers.append(await client.post(path.format(key), **options))
                if path == "/live" and answers[-1].is_success:
                    key = answers[-1].json()["key"]
        return answers

    return asyncio.run(send())


def test_captions_equal_those_of_the_pipeline(pipe: WhisperPipeline) -> None:
    microphone = Microphone(pipe, MicrophoneOptions(language="de"))
    given = [microphone.hear(piece) for piece in PIECES] + microphone.finish()
    transcript = pipe.live_transcript(language="de")
    samples = [np.frombuffer(piece, "<i2").astype(np.float32) / 32768 for piece in PIECES]
    wanted = [transcript.append(piece) for piece in samples] + list(transcript.finish())
    assert [(each.final, each.tentative) for each in given if each] == [(each.final, each.tentative) for each in wanted]
    assert any(each.final for each in wanted) and sum(each.stats.target_passes for each in wanted) > 3


def test_language_is_detected_after_some_sound(pipe: WhisperPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    microphone = Microphone(pipe, MicrophoneOptions())
    monkeypatch.setattr(microphone, "detect", lambda sound: "fr")
    early = [microphone.hear(piece) for piece in PIECES[:2]]
    assert early == [None, None] and microphone.hear(PIECES[2]) is not None  # After two seconds.
    assert microphone.transcript is not None and microphone.transcript.options.language == "fr"


def test_short_sound_is_transcribed_at_its_end(pipe: WhisperPipeline) -> None:
    microphone = Microphone(pipe, MicrophoneOptions())
    assert microphone.hear(PIECES[0]) is None
    assert "".join(each.final for each in microphone.finish())


def test_other_rates_are_converted(pipe: WhisperPipeline) -> None:
    microphone = Microphone(pipe, MicrophoneOptions(language="en", rate=3 * SAMPLE_RATE))
    caption = microphone.hear(to_pcm16(np.repeat(SOUND[:SAMPLE_RATE], 3)))
    assert caption is not None and caption.seconds == pytest.approx(1.0, abs=0.05)  # The resampler waits for more.


def test_captions_come_over_http(pipe: WhisperPipeline) -> None:
    captions = LiveCaptions(StubEngine(pipe))  # type: ignore[arg-type]
    opened, first, second, end, gone = post(
        captions, ("/live", {"json": {"language": "en"}}), ("/live/{}", {"content": PIECES[0]}),
        ("/live/{}", {"content": PIECES[1]}), ("/live/{}/end", {}), ("/live/{}", {"content": PIECES[2]}),
    )  # fmt: skip
    assert opened.is_success and first.json()["tokens"] > 0 and gone.status_code == 404
    text = "".join(answer.json()["final"] for answer in (first, second, end))
    assert text and end.json()["tentative"] == "" and captions.kept.entries == {}


def test_refused_captions_are_one_sentence(pipe: WhisperPipeline) -> None:
    captions = LiveCaptions(StubEngine(pipe))  # type: ignore[arg-type]
    _, unknown, ended = post(
        captions, ("/live", {"json": {"language": "Klingon"}}), ("/live/{}", {"content": PIECES[0]}),
        ("/live/{}", {"content": PIECES[0]}),
    )  # fmt: skip
    assert (unknown.status_code, ended.status_code) == (400, 404) and "Klingon" in unknown.text
    _, long, odd = post(
        captions, ("/live", {"json": {}}), ("/live/{}", {"content": bytes(LONGEST_PIECE + 2)}),
        ("/live", {"json": {"rate": 1}}),
    )  # fmt: skip
    assert (long.status_code, odd.status_code) == (413, 422)


def test_microphones_at_once_are_bounded(pipe: WhisperPipeline) -> None:
    async def begin() -> None:
        captions = LiveCaptions(StubEngine(pipe))  # type: ignore[arg-type]
        most = captions.kept.bounds.total_count
        keys = [captions.begin(MicrophoneOptions(), f"session {number}") for number in range(most)]
        with pytest.raises(Exception, match="too many microphones"):
            captions.begin(MicrophoneOptions(), "another")
        again = captions.begin(MicrophoneOptions(), "session 0")  # A page that begins anew loses its old ones alone.
        assert set(captions.kept.entries) == {*keys[1:], again}

    asyncio.run(begin())


def test_draining_server_opens_no_captions(pipe: WhisperPipeline) -> None:
    engine: Any = StubEngine(pipe)
    engine.draining = True
    [answer] = post(LiveCaptions(engine), ("/live", {"json": {}}))
    assert answer.status_code == 503 and "about to stop" in answer.text


def test_failing_captions_forget_the_microphone(pipe: WhisperPipeline) -> None:
    class FailingEngine(StubEngine):
        async def compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
            raise InvalidArgument("the sound is no sound; send another.")

    captions = LiveCaptions(FailingEngine(pipe))  # type: ignore[arg-type]
    _, failed = post(captions, ("/live", {"json": {}}), ("/live/{}", {"content": PIECES[0]}))
    assert failed.status_code == 400 and captions.kept.entries == {}
