"""`/v1/audio/speech` with the official client: audio matches its seed in every format, streamed and as events."""

from __future__ import annotations

import base64
import json
import struct

import numpy as np
import openai
import pytest

from polydraft.apps.server.api import sound as sounds
from polydraft.modalities.speech.result import to_pcm16

from .live import Live
from .reading import SENTENCES, as_pcm, events, samples


def request_fields(kind: str, **options: object) -> dict:
    return {
        "model": "tiny-speech", "voice": "rms", "input": SENTENCES, "response_format": kind, "extra_body": {"seed": 4},
    } | options  # fmt: skip


@pytest.mark.parametrize("kind", ["wav", "pcm", "flac"])
def test_speech_matches_pipeline_at_same_seed(live: Live, client: openai.OpenAI, kind: str) -> None:
    answer = client.audio.speech.create(**request_fields(kind))
    alone = live.run_pipeline("speech", text=SENTENCES, voice="rms", seed=4)
    if kind == "pcm":
        assert answer.response.headers["content-type"] == "audio/pcm;rate=24000;channels=1"
        assert answer.content == as_pcm(alone.audio)
        return
    sound, rate = samples(answer.content)
    near = np.frombuffer(to_pcm16(alone.audio), "<i2").astype(int) - sound
    assert rate == 16000 and len(sound) == len(alone.audio) and np.abs(near).max() <= (kind == "flac")


@pytest.mark.parametrize(("kind", "media"), [("mp3", "audio/mpeg"), ("opus", "audio/ogg")])
def test_compressed_speech_is_complete_with_metrics(client: openai.OpenAI, kind: str, media: str) -> None:
    answer = client.audio.speech.create(**request_fields(kind))
    sound, rate = samples(answer.content)
    assert answer.response.headers["content-type"] == media and len(sound) / rate > 0.8 and np.abs(sound).max() > 1000
    drafting = json.loads(answer.response.headers["x-polydraft-metrics"])["speculative_decoding"]
    assert drafting["mean_accepted_length"] > 1.5 and answer.response.headers["x-polydraft-seed"] == "4"


def test_audio_is_streamed_while_it_is_synthesised(live: Live, client: openai.OpenAI) -> None:
    """Check that the first chunk arrives while the request is still running."""
    with client.audio.speech.with_streaming_response.create(
        **request_fields("pcm", extra_body={"seed": 4, "method": "ar"})
    ) as answer:
        pieces = answer.iter_bytes()
        first = next(pieces)
        assert len(first) > 0 and live.ask(lambda: [handle.state for handle in live.engine.handles]) == ["running"]
        rest = b"".join(pieces)
    alone = live.run_pipeline("speech", text=SENTENCES, voice="rms", seed=4).audio
    assert first + rest == as_pcm(alone)


def test_speech_events_carry_audio_and_final_metrics(live: Live, client: openai.OpenAI) -> None:
    with client.audio.speech.with_streaming_response.create(**request_fields("pcm", stream_format="sse")) as answer:
        received = events(answer.read().decode())
    *deltas, done = received
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"} and len(deltas) > 1
    sound = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert sound == as_pcm(live.run_pipeline("speech", text=SENTENCES, voice="rms", seed=4).audio)
    assert done["type"] == "speech.audio.done" and done["finish_reason"] == "eos" and done["sample_rate"] == 24000
    drafting = done["metrics"]["speculative_decoding"]
    assert done["usage"]["output_tokens"] == drafting["tokens"] > drafting["target_passes"]


def test_speech_reports_ignored_words(client: openai.OpenAI) -> None:
    text = {"input": "Yes <laugh>. 😀"}
    answer = client.audio.speech.create(**request_fields("mp3") | text)
    assert json.loads(answer.response.headers["x-polydraft-ignored-words"]) == ["<laugh>", "😀"]
    with client.audio.speech.with_streaming_response.create(
        **request_fields("pcm", stream_format="sse") | text
    ) as answer:
        assert events(answer.read().decode())[-1]["ignored_words"] == ["<laugh>", "😀"]


def test_wav_metadata_records_the_request(client: openai.OpenAI) -> None:
    content = client.audio.speech.create(**request_fields("wav")).content
    assert content[:4] == b"RIFF" and content[8:12] == b"WAVE"
    at, size = content.index(b"LIST") + 8, struct.unpack_from("<I", content, content.index(b"LIST") + 4)[0]
    info = content[at : at + size]
    assert b"model tiny-speech, method hydra, seed 4" in info and b"polydraft tiny-speech, rms" in info
    assert content[at + size : at + size + 4] == b"data"


def test_streamed_request_state_is_available_later(live: Live, client: openai.OpenAI) -> None:
    answer = client.audio.speech.create(**request_fields("wav"))
    state = live.http.get(f"/v1/requests/{answer.response.headers['x-request-id']}").json()
    assert (state["state"], state["seed"], state["method"]) == ("done", 4, "hydra")
    assert state["metrics"]["speculative_decoding"]["tokens"] > 0


def test_speed_and_voices(live: Live, client: openai.OpenAI) -> None:
    usual, quick = (
        len(client.audio.speech.create(**request_fields("pcm", speed=speed, input="Good day.")).content)
        for speed in (1.0, 2.0)
    )
    assert abs(usual - 2 * quick) < 1000
    voices = live.http.get("/v1/audio/voices").json()["voices"]
    assert [voice["id"] for voice in voices] == ["rms", "slt", "awb", "kal16"]


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "opus"])
@pytest.mark.parametrize("title", ["\0It is late.", "\x01\x02", ""])
def test_metadata_keeps_only_storable_text(kind: str, title: str) -> None:
    made = sounds.file_of(np.zeros(1600, np.float32), 16000, kind, {"title": title, "comment": "made by a test"})
    assert b"made by a test" in made and (b"It is late." in made) == ("late" in title)
    plain = {"title": "It is late."} if "late" in title else {}
    assert sounds.opening("wav", 16000, {"title": title}) == sounds.opening("wav", 16000, plain)
