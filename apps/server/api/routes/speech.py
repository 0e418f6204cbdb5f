"""`POST /v1/audio/speech` and `GET /v1/audio/voices`: sound, as it is made where the format allows."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from polydraft.apps.server.api import sound, sse
from polydraft.apps.server.api.ignored import NamingRoute, note_ignored
from polydraft.apps.server.api.routes.documented import EVENTS, WORK, TheEngine, noted, refusals, said
from polydraft.apps.server.api.schemas.common import ignored, metrics
from polydraft.apps.server.api.schemas.speech import (
    OPENAI_VOICES,
    AudioDelta,
    AudioDone,
    SpeechRequest,
    SpeechUsage,
    VoiceInfo,
    Voices,
)
from polydraft.apps.server.engine.engine import Served
from polydraft.apps.server.engine.ticket import Ticket
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.speech.family import unlisted_voice
from polydraft.modalities.speech.resampling import Resampler
from polydraft.modalities.speech.result import SpeechResult, pcm
from polydraft.modalities.speech.run import SpeechNews

router = APIRouter(tags=["speech"], route_class=NamingRoute)
BINARY = {"schema": {"type": "string", "format": "binary"}}
SOUND = {
    "description": "Sound, or its events: AudioDelta and AudioDone.",
    "content": dict.fromkeys(sound.MEDIA.values(), BINARY) | {"text/event-stream": EVENTS},
}


@router.post("/v1/audio/speech", response_class=Response, responses=WORK | {200: SOUND})
async def speak(asked: SpeechRequest, request: Request, engine: TheEngine) -> Response:
    """Say a text. wav and pcm are sent as they are made; `stream_format` "sse" sends events."""
    served = engine.model(asked.model, "speech")
    if served.pipe.family.silent:
        raise InvalidArgument(served.pipe.family.silent)
    sound.check_format(asked.response_format)
    voice = voice_of(served, asked.voice)
    note_ignored(request, ignored(asked) + (["voice"] if asked.voice and voice is None else []))
    growing = asked.response_format in sound.GROWING
    arguments = asked.drawing() | {
        "text": asked.input, "voice": voice, "speed": asked.speed,
        "repetition_penalty": asked.repetition_penalty,
    }  # fmt: skip
    seed = arguments["seed"]
    ticket = noted(request, engine.submit(served.name, "speech", arguments, news=growing), seed)
    made_at = served.pipe.sample_rate
    rate = sound.sent_rate(asked.response_format, made_at)
    kind = sound.media_type(asked.response_format, rate)
    headers = said(seed, ticket) | note_header(unlisted(served, voice))
    if not growing:
        result: SpeechResult = await sse.whole(ticket, request)
        file = await asyncio.to_thread(
            sound.file_of, result.audio, rate, asked.response_format, notes(served, asked, voice, ticket, seed)
        )
        if asked.stream_format == "sse":
            return sse.stream(events(ticket, one(file), seed, rate))
        told = headers | {
            "x-polydraft-metrics": metrics(result.stats).model_dump_json(),
            "x-polydraft-ignored-words": json.dumps([word[:40] for word in result.ignored_words[:16]]),
        }
        return Response(file, media_type=kind, headers=told)
    head: SpeechNews | None = await sse.first(ticket, request)
    opening = sound.opening(asked.response_format, rate, notes(served, asked, voice, ticket, seed))
    pieces = made(ticket, head, opening, Resampler(made_at, rate))
    if asked.stream_format == "sse":
        return sse.stream(events(ticket, pieces, seed, rate))
    return StreamingResponse(pieces, media_type=kind, headers=headers)


@router.get("/v1/audio/voices", responses=refusals())
async def voices(engine: TheEngine) -> Voices:
    """Voices of all speech models that are served."""
    return Voices(
        voices=[
            VoiceInfo(id=voice, name=voice, model=served.name, aliases=aliases_of(voice, served.voices))
            for served in engine.models() for voice in served.voices
        ]
    )  # fmt: skip


def voice_of(served: Served, asked: str | None) -> str | None:
    """Return the model's own voice for one of OpenAI's; any other name as it is."""
    if asked not in OPENAI_VOICES or asked in served.voices:
        return asked
    return next((voice for voice in served.voices if asked in aliases_of(voice, served.voices)), None)


def aliases_of(voice: str, voices: list[str]) -> list[str]:
    """Return those of OpenAI's names that mean `voice`: they are dealt out over a model's voices in turn."""
    free = [name for name in OPENAI_VOICES if name not in voices]
    return free[voices.index(voice) :: len(voices)]


def unlisted(served: Served, voice: str | None) -> str:
    """Return the note on a voice that the model does not list; "" for one that it does."""
    return "" if voice is None or voice in served.voices else unlisted_voice(voice, served.name, served.voices)


def note_header(note: str) -> dict[str, str]:
    """Return the header that bears a note, escaped to the characters that headers may hold."""
    return {"x-polydraft-notes": note.encode("ascii", "backslashreplace").decode()} if note else {}


async def made(
    ticket: Ticket, head: SpeechNews | None, opening: bytes, resampler: Resampler
) -> AsyncIterator[bytes]:
    """Yield the file so far, piece by piece."""
    async with ticket:
        if opening:
            yield opening
        news = head
        while news is not None:
            if piece := pcm(resampler.push(news.audio)):
                yield piece
            news = await anext(ticket, None)
        if piece := pcm(resampler.finish()):
            yield piece
        await ticket.result()


async def one(file: bytes) -> AsyncIterator[bytes]:
    yield file


async def events(ticket: Ticket, pieces: AsyncIterator[bytes], seed: int, rate: int) -> AsyncIterator[bytes]:
    """Pieces of sound as events, and what came of it."""
    async for piece in pieces:
        delta = AudioDelta(audio=base64.b64encode(piece).decode())
        yield sse.event(delta, delta.type)
    result: SpeechResult = await ticket.result()
    read, spoken = ticket.prompt_tokens, result.stats.tokens
    done = AudioDone(
        usage=SpeechUsage(input_tokens=read, output_tokens=spoken, total_tokens=read + spoken), seed=seed,
        sample_rate=rate, finish_reason=result.finish_reason, metrics=metrics(result.stats),
        ignored_words=list(result.ignored_words), notes=list(result.notes),
    )  # fmt: skip
    yield sse.event(done, done.type)


def notes(served: Served, asked: SpeechRequest, voice: str | None, ticket: Ticket, seed: int) -> dict[str, str]:
    """What the file says made it."""
    speaker = voice or next(iter(served.voices), "")
    return {
        "title": asked.input[:200], "artist": f"polydraft {served.name}, {speaker}", "software": "polydraft",
        "comment": f"AI-generated speech; model {served.name}, method {ticket.method}, seed {seed}",
    }  # fmt: skip
