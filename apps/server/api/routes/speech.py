"""`POST /v1/audio/speech` and `GET /v1/audio/voices`: audio, streamed if the format allows."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from polydraft.apps.server.api import sound, sse
from polydraft.apps.server.api.ignored import NamingRoute, note_ignored
from polydraft.apps.server.api.routes.documented import EVENTS, WORK, TheEngine, refusals, seed_headers, track_request
from polydraft.apps.server.api.schemas.common import TokenUsage, ignored, metrics
from polydraft.apps.server.api.schemas.speech import (
    OPENAI_VOICES,
    AudioDelta,
    AudioDone,
    SpeechRequest,
    VoiceInfo,
    Voices,
)
from polydraft.apps.server.engine.engine import Served
from polydraft.apps.server.engine.handle import RequestHandle
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.speech.family import unlisted_voice
from polydraft.modalities.speech.request import SpeechProgress
from polydraft.modalities.speech.resampling import Resampler
from polydraft.modalities.speech.result import SpeechResult, to_pcm16

router: APIRouter = APIRouter(tags=["speech"], route_class=NamingRoute)
BINARY = {"schema": {"type": "string", "format": "binary"}}
SOUND: dict[str, Any] = {
    "description": "Sound, or its events: AudioDelta and AudioDone.",
    "content": dict.fromkeys(sound.MEDIA.values(), BINARY) | {"text/event-stream": EVENTS},
}


@router.post("/v1/audio/speech", response_class=Response, responses=WORK | {200: SOUND})
async def speak(body: SpeechRequest, request: Request, engine: TheEngine) -> Response:
    """Synthesise a text. wav and pcm are streamed; `stream_format` "sse" sends events."""
    served = engine.model(body.model, "speech")
    if served.pipe.family.no_audio_reason:
        raise InvalidArgument(served.pipe.family.no_audio_reason)
    sound.check_format(body.response_format)
    voice = voice_of(served, body.voice)
    note_ignored(request, ignored(body) + (["voice"] if body.voice and voice is None else []))
    growing = body.response_format in sound.GROWING
    arguments = body.drawing() | {
        "text": body.input, "voice": voice, "speed": body.speed,
        "repetition_penalty": body.repetition_penalty,
    }  # fmt: skip
    seed = arguments["seed"]
    handle = track_request(request, engine.submit(served.name, "speech", arguments, wants_progress=growing), seed)
    made_at = served.pipe.sample_rate
    rate = sound.sent_rate(body.response_format, made_at)
    kind = sound.media_type(body.response_format, rate)
    headers = seed_headers(seed, handle) | note_header(unlisted(served, voice))
    if not growing:
        result: SpeechResult = await sse.await_result(handle, request)
        file = await asyncio.to_thread(
            sound.file_of, result.audio, rate, body.response_format, notes(served, body, voice, handle, seed)
        )
        if body.stream_format == "sse":
            return sse.stream(events(handle, one(file), seed, rate))
        response_headers = headers | {
            "x-polydraft-metrics": metrics(result.stats).model_dump_json(),
            "x-polydraft-ignored-words": json.dumps([word[:40] for word in result.ignored_words[:16]]),
        }
        return Response(file, media_type=kind, headers=response_headers)
    head: SpeechProgress | None = await sse.first_progress(handle, request)
    opening = sound.opening(body.response_format, rate, notes(served, body, voice, handle, seed))
    pieces = audio_file_pieces(handle, head, opening, Resampler(made_at, rate))
    if body.stream_format == "sse":
        return sse.stream(events(handle, pieces, seed, rate))
    return StreamingResponse(pieces, media_type=kind, headers=headers)


@router.get("/v1/audio/voices", responses=refusals())
async def voices(engine: TheEngine) -> Voices:
    """List the voices of all served speech models."""
    return Voices(
        voices=[
            VoiceInfo(id=voice, name=voice, model=served.name, aliases=aliases_of(voice, served.voices))
            for served in engine.models() for voice in served.voices
        ]
    )  # fmt: skip


def voice_of(served: Served, name: str | None) -> str | None:
    """Return the model's voice for one of OpenAI's names; other names unchanged."""
    if name not in OPENAI_VOICES or name in served.voices:
        return name
    return next((voice for voice in served.voices if name in aliases_of(voice, served.voices)), None)


def aliases_of(voice: str, voices: list[str]) -> list[str]:
    """Return OpenAI's names that map to `voice`; they are distributed round-robin over a model's voices."""
    free = [name for name in OPENAI_VOICES if name not in voices]
    return free[voices.index(voice) :: len(voices)]


def unlisted(served: Served, voice: str | None) -> str:
    """Return the note on a voice that the model does not list; "" for one that it does."""
    return "" if voice is None or voice in served.voices else unlisted_voice(voice, served.name, served.voices)


def note_header(note: str) -> dict[str, str]:
    """Return the header for a note, escaped to the characters that headers may contain."""
    return {"x-polydraft-notes": note.encode("ascii", "backslashreplace").decode()} if note else {}


async def audio_file_pieces(
    handle: RequestHandle, head: SpeechProgress | None, opening: bytes, resampler: Resampler
) -> AsyncIterator[bytes]:
    """Yield the file so far, piece by piece."""
    async with handle:
        if opening:
            yield opening
        progress = head
        while progress is not None:
            if piece := to_pcm16(resampler.push(progress.audio)):
                yield piece
            progress = await anext(handle, None)
        if piece := to_pcm16(resampler.finish()):
            yield piece
        await handle.result()


async def one(file: bytes) -> AsyncIterator[bytes]:
    yield file


async def events(handle: RequestHandle, pieces: AsyncIterator[bytes], seed: int, rate: int) -> AsyncIterator[bytes]:
    """Yield audio pieces as events, then the statistics."""
    async for piece in pieces:
        delta = AudioDelta(audio=base64.b64encode(piece).decode())
        yield sse.event(delta, delta.type)
    result: SpeechResult = await handle.result()
    read, spoken = handle.prompt_tokens, result.stats.tokens
    done = AudioDone(
        usage=TokenUsage(input_tokens=read, output_tokens=spoken, total_tokens=read + spoken), seed=seed,
        sample_rate=rate, finish_reason=result.finish_reason, metrics=metrics(result.stats),
        ignored_words=list(result.ignored_words), notes=list(result.notes),
    )  # fmt: skip
    yield sse.event(done, done.type)


def notes(served: Served, body: SpeechRequest, voice: str | None, handle: RequestHandle, seed: int) -> dict[str, str]:
    """Return the metadata of an audio file."""
    speaker = voice or next(iter(served.voices), "")
    return {
        "title": body.input[:200], "artist": f"polydraft {served.name}, {speaker}", "software": "polydraft",
        "comment": f"AI-generated speech; model {served.name}, method {handle.method}, seed {seed}",
    }  # fmt: skip
