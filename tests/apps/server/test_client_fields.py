"""Fields that clients send: accepted where they ask for the default behaviour, reported where they are ignored."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import numpy as np
import openai
import pytest
from pydantic import BaseModel

from polydraft.apps.server.api import sound
from polydraft.apps.server.api.ignored import HEADER
from polydraft.apps.server.api.routes.speech import aliases_of
from polydraft.apps.server.api.schemas.chat import ChatRequest
from polydraft.apps.server.api.schemas.common import Ignored, ignored
from polydraft.apps.server.api.schemas.images import USUAL_SIZES, ImageRequest
from polydraft.apps.server.api.schemas.speech import OPENAI_VOICES, SpeechRequest
from polydraft.core.errors import InvalidArgument

from .live import Live
from .reading import NAVY, PROMPT, as_pcm, picture, question_messages

IMAGES, SPEECH, CHAT = "/v1/images/generations", "/v1/audio/speech", "/v1/chat/completions"
REQUESTS: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    IMAGES: (ImageRequest, {"prompt": PROMPT}), SPEECH: (SpeechRequest, {"input": "Yes."}),
    CHAT: (ChatRequest, {"messages": question_messages(None)}),
}  # fmt: skip
DONE_ANYWAY: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"frequency_penalty": 0}), (CHAT, {"presence_penalty": 0.0}), (CHAT, {"logprobs": False}),
    (CHAT, {"top_logprobs": 0}), (CHAT, {"logit_bias": {}}), (CHAT, {"tools": []}), (CHAT, {"tool_choice": "none"}),
    (CHAT, {"tool_choice": "auto"}), (CHAT, {"functions": [], "function_call": "none"}),
    (CHAT, {"response_format": {"type": "text"}}), (CHAT, {"modalities": ["text"]}), (CHAT, {"store": False}),
    (CHAT, {"service_tier": "auto"}), (CHAT, {"metadata": {}}), (CHAT, {"n": 1}), (CHAT, {"an_unknown_field": None}),
    (IMAGES, {"quality": "auto"}), (IMAGES, {"moderation": "auto"}), (IMAGES, {"background": "opaque"}),
    (IMAGES, {"response_format": "url"}),
]  # fmt: skip
CHANGE_NOTHING: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"metadata": {"a": "b"}}), (CHAT, {"store": True}), (CHAT, {"service_tier": "flex"}),
    (CHAT, {"parallel_tool_calls": True}), (CHAT, {"safety_identifier": "x"}), (CHAT, {"prompt_cache_key": "x"}),
    (CHAT, {"user": "x"}), (CHAT, {"prediction": {"type": "content", "content": "x"}}), (CHAT, {"verbosity": "low"}),
    (CHAT, {"reasoning_effort": "high"}), (IMAGES, {"quality": "hd"}), (IMAGES, {"style": "vivid"}),
    (IMAGES, {"moderation": "low"}), (IMAGES, {"user": "x"}), (SPEECH, {"instructions": "Whisper."}),
    (SPEECH, {"user": "x"}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields"), DONE_ANYWAY, ids=str)
def test_field_asking_for_default_behaviour_is_accepted(path: str, fields: dict[str, Any]) -> None:
    model, good = REQUESTS[path]
    assert ignored(model.model_validate(good | fields)) == []


@pytest.mark.parametrize(("path", "fields"), CHANGE_NOTHING, ids=str)
def test_ignored_field_is_named(path: str, fields: dict[str, Any]) -> None:
    model, good = REQUESTS[path]
    assert ignored(model.model_validate(good | fields)) == list(fields)


@pytest.mark.parametrize("path", REQUESTS)
def test_null_for_any_optional_field_is_left_out(path: str) -> None:
    """Check every field, nested ones included, and the documented schema."""
    model, good = REQUESTS[path]
    optional = {name: None for name, field in model.model_fields.items() if not field.is_required()}
    usual = model.model_validate(good)
    assert model.model_validate(good | optional).model_dump() == usual.model_dump() and len(optional) > 9
    for name, part in model.model_json_schema()["properties"].items():
        takes_null = part.get("type") == "null" or {"type": "null"} in part.get("anyOf", ())
        assert takes_null == (name in optional), name


def test_whole_number_with_a_point_is_whole() -> None:
    assert (
        ChatRequest.model_validate({"messages": question_messages(None), "n": 2.0, "seed": 1e3, "temperature": 1}).n
        == 2
    )
    for wrong in ({"n": 2.5}, {"n": True}, {"seed": 1e300}, {"n": "2"}):
        with pytest.raises(ValueError):
            ChatRequest.model_validate({"messages": question_messages(None)} | wrong)


def test_null_in_nested_fields_is_left_out() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": None}, "more": None}
    messages = [{"role": "user", "content": [part], "name": None}]
    read = ChatRequest.model_validate({"messages": messages, "stream_options": {"include_usage": None}})
    assert ignored(read) == [] and read.messages[0].content[0].image_url.detail == "auto"  # type: ignore[index,union-attr]


def test_ignored_extra_keys_of_parts_are_named() -> None:
    url = {"url": "data:image/png;base64,AAAA", "detail": "high", "size": 3}
    parts = [{"type": "text", "text": "a", "cache_control": {}}, {"type": "image_url", "image_url": url, "uuid": "b"}]
    read = ChatRequest.model_validate({"messages": [{"role": "user", "content": parts, "name": "bob"}] * 2})
    assert ignored(read) == [
        "messages.content.cache_control", "messages.content.image_url.detail", "messages.content.image_url.size",
        "messages.content.uuid", "messages.name",
    ]  # fmt: skip


def test_ignored_fields_header_always_log_once(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    body = {
        "messages": question_messages(None), "max_tokens": 2, "store": True, "verbosity": "low", "user": None,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    body["messages"][0]["content"][0]["r\nset-cookie: a"] = 1
    with caplog.at_level(logging.INFO, "polydraft.server"):
        answers = [live.http.post(CHAT, json=body | {"stream": stream}) for stream in (False, False, True)]
    names = "messages.content.r?set-cookie??a, store, verbosity"
    assert [answer.headers[HEADER] for answer in answers] == [f"{names}, stream_options"] * 2 + [names]
    log_lines = [record.getMessage() for record in caplog.records if "changes nothing" in record.getMessage()]
    assert len(log_lines) == len(set(log_lines)) == 4 and any(" store," in line for line in log_lines)
    assert HEADER not in live.http.post(CHAT, json={"messages": question_messages(None), "max_tokens": 2}).headers


def test_refused_fields_name_their_request_path(live: Live) -> None:
    def param(messages: Any) -> str:
        return live.http.post(CHAT, json={"messages": messages}).json()["error"]["param"]

    assert param([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a"}}]}]) == (
        "messages.0.content.0.image_url.url"
    )
    assert param([{"role": "user"}]) == "messages.0.content" and param([{"role": "tool"}]) == "messages.0"
    assert (
        live.http.post(CHAT, json={"messages": question_messages(None), "query": 1}).json()["error"]["param"] == "query"
    )


def test_chat_n_choices_match_their_seeds(live: Live, client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "tiny-vlm",
        "messages": question_messages(NAVY),
        "temperature": 1.5,
        "max_tokens": 12,
    }
    whole = client.chat.completions.create(**options, seed=3, n=3)
    alone = [client.chat.completions.create(**options, seed=seed) for seed in (3, 4, 5)]
    texts = [choice.message.content for choice in whole.choices]
    assert texts == [answer.choices[0].message.content for answer in alone] and len(set(texts)) > 1
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert whole.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert whole.usage.completion_tokens == sum(answer.usage.completion_tokens for answer in alone)
    streamed, ends = [""] * 3, [""] * 3
    for chunk in client.chat.completions.create(**options, seed=3, n=3, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            ends[choice.index] += choice.finish_reason or ""
    assert streamed == texts and ends == [choice.finish_reason for choice in whole.choices]


def test_openai_sizes_use_nearest_supported_size(live: Live, client: openai.OpenAI) -> None:
    pipe = live.engine.model("tiny-image").pipe
    assert {pipe.with_nearest_size(size).dimensions for size in USUAL_SIZES} == {"128x128"}
    answer = client.images.generate(
        prompt=PROMPT, size="1024x1024", quality="hd", style="vivid", response_format="url", extra_body={"seed": 5}
    )
    file = answer.data[0]
    assert answer.size == "128x128" and file.b64_json is None and file.url.startswith("data:image/png;base64,")
    response = client.images.generate(prompt=PROMPT, extra_body={"seed": 5})
    assert picture(file.url.partition(",")[2]).tobytes() == picture(response.data[0].b64_json).tobytes()


def test_openai_voices_map_to_served_voices(live: Live, client: openai.OpenAI) -> None:
    voices = {voice["id"]: voice["aliases"] for voice in live.http.get("/v1/audio/voices").json()["voices"]}
    assert sorted(sum(voices.values(), [])) == sorted(OPENAI_VOICES) and list(voices) == ["rms", "slt", "awb", "kal16"]
    assert "ash" in voices["slt"]
    options: dict[str, Any] = {"input": "Yes.", "response_format": "pcm", "extra_body": {"seed": 4}}
    speech = client.audio.speech.create(model="tiny-speech", voice="ash", instructions="Whisper.", **options)
    assert speech.content == as_pcm(live.run_pipeline("speech", text="Yes.", voice="slt", seed=4).audio)
    assert speech.response.headers[HEADER] == "instructions"


def test_served_voice_with_openai_name_keeps_it() -> None:
    assert aliases_of("alloy", ["alloy", "x"])[0] == "ash" and "alloy" not in aliases_of("x", ["alloy", "x"])
    assert aliases_of("only", ["only"]) == list(OPENAI_VOICES)


def test_aac_encodes_audio_in_adts_frames() -> None:
    av = pytest.importorskip("av", reason="the encoder is in the extra serve")
    wave = np.sin(np.arange(16_000) * 0.2).astype(np.float32) * 0.5
    encoded = sound.file_of(wave, 16_000, "aac", {"title": "unused"})
    assert encoded[:1] == b"\xff" and encoded[1] & 0xF6 == 0xF0  # Syncword of ADTS, layer 0.
    with av.open(io.BytesIO(encoded)) as file:
        decoded = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    assert 16_000 <= len(decoded) < 19_000 and 0.4 < np.abs(decoded).max() < 0.6
    assert sound.file_of(np.zeros(0, np.float32), 16_000, "aac", {})


def test_aac_without_encoder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound, "find_spec", lambda name: None)
    with pytest.raises(InvalidArgument, match="package av"):
        sound.check_format("aac")
    sound.check_format("mp3")


def test_aac_is_served(live: Live) -> None:
    pytest.importorskip("av", reason="the encoder is in the extra serve")
    answer = live.http.post(SPEECH, json={"input": "Yes.", "response_format": "aac", "voice": "rms", "speed": None})
    assert answer.status_code == 200 and answer.headers["content-type"] == "audio/aac"
    assert json.loads(answer.headers["x-polydraft-metrics"])["speculative_decoding"]["tokens"] > 0


def test_vllm_metric_names_agree_with_polydraft_names(live: Live, client: openai.OpenAI) -> None:
    for method in ("hydra", "ar"):
        body = {"messages": question_messages(NAVY), "seed": 1, "max_tokens": 24, "method": method}
        drafting = live.http.post(CHAT, json=body).json()["metrics"]["speculative_decoding"]
        steps, histogram = drafting["num_spec_steps"], drafting["acceptance_histogram"]
        assert steps == drafting["target_passes"] == sum(histogram) > 0
        assert len(histogram) == drafting["num_spec_tokens"] + 1
        accepted = drafting["num_accepted_draft_tokens"]
        assert accepted == drafting["accepted_tokens"] == sum(count * passes for count, passes in enumerate(histogram))
        assert drafting["num_draft_tokens"] == drafting["drafted_tokens"] <= steps * drafting["num_spec_tokens"]
        assert drafting["draft_acceptance_rate"] == drafting["acceptance_rate"]
        assert drafting["mean_acceptance_length"] == round(1 + accepted / steps, 4)
        assert abs(drafting["mean_acceptance_length"] - drafting["mean_accepted_length"]) < 0.5
        assert (accepted > 0) == (method == "hydra")


def test_only_optional_fields_are_marked_ignored() -> None:
    for model, _ in REQUESTS.values():
        for name, field in model.model_fields.items():
            if any(isinstance(mark, Ignored) for mark in field.metadata):
                assert not field.is_required(), name
