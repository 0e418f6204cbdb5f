"""`/v1/audio/speech` by the official client: every format, as it is made and in events, is the speech of its seed."""

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


def asked(kind: str, **options: object) -> dict:
    return {
        "model": "tiny-speech", "voice": "rms", "input": SENTENCES, "response_format": kind, "extra_body": {"seed": 4},
    } | options  # fmt: skip


@pytest.mark.parametrize("kind", ["wav", "pcm", "flac"])
def test_speech_is_that_of_its_seed_to_the_sample(live: Live, client: openai.OpenAI, kind: str) -> None:
    answer = client.audio.speech.create(**asked(kind))
    alone = live.alone("speech", text=SENTENCES, voice="rms", seed=4)
    if kind == "pcm":
        assert answer.response.headers["content-type"] == "audio/pcm;rate=24000;channels=1"
        assert answer.content == as_pcm(alone.audio)
        return
    sound, rate = samples(answer.content)
    near = np.frombuffer(to_pcm16(alone.audio), "<i2").astype(int) - sound
    assert rate == 16000 and len(sound) == len(alone.audio) and np.abs(near).max() <= (kind == "flac")


@pytest.mark.parametrize(("kind", "media"), [("mp3", "audio/mpeg"), ("opus", "audio/ogg")])
def test_compressed_speech_is_whole_and_tells_of_its_drafting(client: openai.OpenAI, kind: str, media: str) -> None:
    answer = client.audio.speech.create(**asked(kind))
    sound, rate = samples(answer.content)
    assert answer.response.headers["content-type"] == media and len(sound) / rate > 0.8 and np.abs(sound).max() > 1000
    drafting = json.loads(answer.response.headers["x-polydraft-metrics"])["speculative_decoding"]
    assert drafting["mean_accepted_length"] > 1.5 and answer.response.headers["x-polydraft-seed"] == "4"


def test_sound_is_sent_while_it_is_made(live: Live, client: openai.OpenAI) -> None:
    """The first piece is here while the compute thread has not done the rest."""
    with client.audio.speech.with_streaming_response.create(
        **asked("pcm", extra_body={"seed": 4, "method": "ar"})
    ) as answer:
        pieces = answer.iter_bytes()
        first = next(pieces)
        assert len(first) > 0 and live.ask(lambda: [handle.state for handle in live.engine.handles]) == ["running"]
        rest = b"".join(pieces)
    alone = live.alone("speech", text=SENTENCES, voice="rms", seed=4).audio
    assert first + rest == as_pcm(alone)


def test_events_bear_the_same_sound_and_end_with_its_drafting(live: Live, client: openai.OpenAI) -> None:
    with client.audio.speech.with_streaming_response.create(**asked("pcm", stream_format="sse")) as answer:
        told = events(answer.read().decode())
    *deltas, done = told
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"} and len(deltas) > 1
    sound = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert sound == as_pcm(live.alone("speech", text=SENTENCES, voice="rms", seed=4).audio)
    assert done["type"] == "speech.audio.done" and done["finish_reason"] == "eos" and done["sample_rate"] == 24000
    drafting = done["metrics"]["speculative_decoding"]
    assert done["usage"]["output_tokens"] == drafting["tokens"] > drafting["target_passes"]


def test_speech_tells_what_of_the_text_is_left_out(client: openai.OpenAI) -> None:
    text = {"input": "Yes <laugh>. 😀"}
    answer = client.audio.speech.create(**asked("mp3") | text)
    assert json.loads(answer.response.headers["x-polydraft-ignored-words"]) == ["<laugh>", "😀"]
    with client.audio.speech.with_streaming_response.create(**asked("pcm", stream_format="sse") | text) as answer:
        assert events(answer.read().decode())[-1]["ignored_words"] == ["<laugh>", "😀"]


def test_a_wav_says_what_made_it(client: openai.OpenAI) -> None:
    content = client.audio.speech.create(**asked("wav")).content
    assert content[:4] == b"RIFF" and content[8:12] == b"WAVE"
    at, size = content.index(b"LIST") + 8, struct.unpack_from("<I", content, content.index(b"LIST") + 4)[0]
    info = content[at : at + size]
    assert b"model tiny-speech, method hydra, seed 4" in info and b"polydraft tiny-speech, rms" in info
    assert content[at + size : at + size + 4] == b"data"


def test_what_was_streamed_can_be_asked_about_later(live: Live, client: openai.OpenAI) -> None:
    answer = client.audio.speech.create(**asked("wav"))
    told = live.http.get(f"/v1/requests/{answer.response.headers['x-request-id']}").json()
    assert (told["state"], told["seed"], told["method"]) == ("done", 4, "hydra")
    assert told["metrics"]["speculative_decoding"]["tokens"] > 0


def test_speed_and_voices(live: Live, client: openai.OpenAI) -> None:
    usual, quick = (
        len(client.audio.speech.create(**asked("pcm", speed=speed, input="Good day.")).content) for speed in (1.0, 2.0)
    )
    assert abs(usual - 2 * quick) < 1000
    voices = live.http.get("/v1/audio/voices").json()["voices"]
    assert [voice["id"] for voice in voices] == ["rms", "slt", "awb", "kal16"]


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "opus"])
@pytest.mark.parametrize("title", ["\0It is late.", "\x01\x02", ""])
def test_notes_hold_what_a_file_can_hold(kind: str, title: str) -> None:
    made = sounds.file_of(np.zeros(1600, np.float32), 16000, kind, {"title": title, "comment": "made by a test"})
    assert b"made by a test" in made and (b"It is late." in made) == ("late" in title)
    plain = {"title": "It is late."} if "late" in title else {}
    assert sounds.opening("wav", 16000, {"title": title}) == sounds.opening("wav", 16000, plain)
