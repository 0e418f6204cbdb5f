"""`POST /v1/audio/transcriptions` and `POST /v1/audio/translations`: the text of a recording, whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from polydraft.apps.server.api import envelope, sse
from polydraft.apps.server.api.ignored import NamingRoute, note_ignored
from polydraft.apps.server.api.routes.documented import (
    EVENTS,
    WORK,
    TheEngine,
    TheSettings,
    refusals,
    seed_headers,
    track_request,
)
from polydraft.apps.server.api.schemas.common import ignored, metrics
from polydraft.apps.server.api.schemas.transcriptions import (
    SUBTITLES,
    DurationUsage,
    StreamedUsage,
    TextDelta,
    TextDone,
    TranscriptionAnswer,
    TranscriptionForm,
    TranslationForm,
    VerboseTranscription,
)
from polydraft.apps.server.api.uploads import UploadSlots, form_body, receive_form
from polydraft.apps.server.engine.engine import ServerEngine
from polydraft.apps.server.engine.handle import RequestHandle
from polydraft.apps.server.engine.uploads import UploadedSound
from polydraft.apps.server.settings import ServerSettings
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.transcription.request import TranscriptionProgress
from polydraft.modalities.transcription.result import Transcription

router: APIRouter = APIRouter(tags=["transcription"], route_class=NamingRoute)
MEDIA = {"text": "text/plain; charset=utf-8", "srt": "text/plain; charset=utf-8", "vtt": "text/vtt; charset=utf-8"}
PLAIN = {"schema": {"type": "string"}}
TEXTS: dict[str, Any] = {
    "description": "A text, or its events: TextDelta and TextDone.",
    "content": {"text/plain": PLAIN, "text/vtt": PLAIN, "text/event-stream": EVENTS},
}
RESPONSES = WORK | refusals(415) | {200: TEXTS}
ANSWERS: Any = TranscriptionAnswer | VerboseTranscription


@router.post(
    "/v1/audio/transcriptions", response_model=ANSWERS, responses=RESPONSES, openapi_extra=form_body(TranscriptionForm)
)
async def transcribe(request: Request, engine: TheEngine, settings: TheSettings) -> Response:
    """Write down what is said in a recording; with `stream` as server-sent events."""
    return await answer(request, engine, settings, TranscriptionForm)


@router.post(
    "/v1/audio/translations", response_model=ANSWERS, responses=RESPONSES, openapi_extra=form_body(TranslationForm)
)
async def translate(request: Request, engine: TheEngine, settings: TheSettings) -> Response:
    """Write down in English what is said in a recording of another language."""
    return await answer(request, engine, settings, TranslationForm)


async def answer(
    request: Request, engine: ServerEngine, settings: ServerSettings, kind: type[TranslationForm]
) -> Response:
    """Return the answer to a form of a kind."""
    engine.model(None, "transcription")  # refused before a file is received
    uploads: UploadSlots = request.app.state.uploads
    with uploads.slot(engine.limits.rows + engine.limits.queue):
        try:
            form, file = await receive_form(request, kind, settings.max_upload_bytes)
        except RequestValidationError as error:
            return envelope.invalid(error, list(kind.model_fields))
    try:
        granularities = check_granularities(form)
        is_streamed = check_stream(form)
        served = engine.model(form.model, "transcription")
        note_ignored(request, unused(form))
        arguments = form.arguments() | {"audio": UploadedSound(file.file, settings.max_sound_seconds)}
        seed = arguments["seed"]
        submitted = engine.submit(served.name, "transcription", arguments, wants_progress=is_streamed)
    except BaseException:
        await file.close()
        raise
    handle = track_request(request, submitted, seed)  # the engine closes the file
    if is_streamed:
        head: TranscriptionProgress | None = await sse.first_progress(handle, request)
        return sse.stream(events(handle, head, seed))
    result: Transcription = await sse.await_result(handle, request)
    if form.response_format in MEDIA:
        headers = seed_headers(seed, handle) | {"x-polydraft-metrics": metrics(result.stats).model_dump_json()}
        return Response(text_of(result, form.response_format), headers=headers, media_type=MEDIA[form.response_format])
    shared: dict[str, Any] = {
        "usage": DurationUsage(seconds=round(result.duration, 3)), "model": served.name, "seed": seed,
        "metrics": metrics(result.stats), "notes": list(result.notes),
    }  # fmt: skip
    if form.response_format == "verbose_json":
        missing = {f"{name}s" for name in ("segment", "word") if name not in granularities}
        return JSONResponse(VerboseTranscription(**result.to_dict(), **shared).model_dump(exclude=missing))
    return JSONResponse(TranscriptionAnswer(text=result.text, **shared).model_dump())


def check_stream(form: TranslationForm) -> bool:
    """Return whether the answer is streamed; raise InvalidArgument for a format that events do not have."""
    is_streamed = isinstance(form, TranscriptionForm) and form.stream
    if is_streamed and form.response_format not in ("json", "text"):
        raise InvalidArgument(
            f"response_format={form.response_format} is not streamed; use json or text, or leave stream out."
        )
    return is_streamed


def check_granularities(form: TranslationForm) -> Sequence[str]:
    """Return what has times in the answer; raise InvalidArgument for words in a format that does not have them."""
    granularities = form.timestamp_granularities if isinstance(form, TranscriptionForm) else ["segment"]
    if "word" in granularities and form.response_format != "verbose_json":
        raise InvalidArgument(
            f"timestamp_granularities=word needs response_format=verbose_json, not {form.response_format}; change one "
            "of them."
        )
    return granularities


def unused(form: TranslationForm) -> list[str]:
    """Return the fields of a form that change nothing."""
    is_set = "timestamp_granularities" in form.model_fields_set
    return ignored(form) + (["timestamp_granularities"] if is_set and form.response_format != "verbose_json" else [])


def text_of(result: Transcription, response_format: str) -> str:
    """Return a transcription in a format that is no JSON."""
    return result.render(f".{response_format}") if response_format in SUBTITLES else f"{result.text}\n"


async def events(handle: RequestHandle, head: TranscriptionProgress | None, seed: int) -> AsyncIterator[bytes]:
    """Yield the text of segments as they are finished, then the whole text with usage and statistics.

    The text of a window may be decoded again as long as the window is not finished, so no event has it before.
    """
    async with handle:
        sent, waiting, progress = "", "", head
        while progress is not None:
            for segment in progress.segments:
                delta, waiting = next_delta(sent, waiting + segment.text)
                sent += delta
                if delta:
                    yield sse.event(TextDelta(delta=delta))
            progress = await anext(handle, None)
        result: Transcription = await handle.result()
        if len(result.text) > len(sent) and result.text.startswith(sent):
            yield sse.event(TextDelta(delta=result.text[len(sent) :]))
        read, written = handle.prompt_tokens, result.stats.tokens
        usage = StreamedUsage(input_tokens=read, output_tokens=written, total_tokens=read + written)
        yield sse.event(
            TextDone(
                text=result.text, usage=usage, language=result.language, duration=result.duration, model=result.model,
                seed=seed, metrics=metrics(result.stats), notes=list(result.notes),
            )
        )  # fmt: skip


def next_delta(sent: str, text: str) -> tuple[str, str]:
    """Return what may be sent of a text after what has been, and the spaces that wait: none are around the whole."""
    text = text if sent else text.lstrip()
    delta = text.rstrip()
    return delta, text[len(delta) :]
