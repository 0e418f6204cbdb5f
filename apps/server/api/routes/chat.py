"""`POST /v1/chat/completions`: answers about images, whole or streamed."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import APIRouter, Request

from polydraft.apps.server.api import pictures, sse
from polydraft.apps.server.api.ignored import NamingRoute, note_ignored
from polydraft.apps.server.api.routes.documented import EVENTS, WORK, TheEngine, TheSettings, track_request
from polydraft.apps.server.api.schemas.chat import (
    AnswerMessage,
    ChatAnswer,
    ChatChunk,
    ChatRequest,
    ChatUsage,
    Choice,
    ChunkChoice,
    Delta,
    ImagePart,
    Message,
    TextPart,
)
from polydraft.apps.server.api.schemas.common import ignored, metrics
from polydraft.apps.server.engine.handle import RequestHandle
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.vlm.request import ChatProgress
from polydraft.modalities.vlm.result import ChatResult

router: APIRouter = APIRouter(tags=["chat"], route_class=NamingRoute)
MOST_PICTURES, MOST_READ = 8, 16  # of a conversation, and read for all its choices
MOST_TEXT = 2_000_000  # characters of all messages
ANSWER: dict[str, Any] = {
    "content": {"text/event-stream": EVENTS},
    "description": "An answer, or its events: ChatChunk.",
}


@router.post("/v1/chat/completions", response_model=ChatAnswer, responses=WORK | {200: ANSWER})
async def complete(body: ChatRequest, request: Request, engine: TheEngine, settings: TheSettings) -> Any:
    """Answer the last message; with `stream` as server-sent events."""
    served = engine.model(body.model, "vlm")
    most = body.max_completion_tokens or body.max_tokens
    if most is not None and body.min_tokens > most:
        raise InvalidArgument(f"min_tokens={body.min_tokens} is more than max_tokens={most}; change one.")
    unused = ["stream_options"] if body.stream_options is not None and not body.stream else []
    note_ignored(request, ignored(body) + unused)
    conversation = await asyncio.to_thread(turns, body.messages, settings.max_pixels, body.n)
    arguments = body.drawing() | {
        "image": None, "messages": [conversation] * body.n, "max_new_tokens": most,
        "min_new_tokens": body.min_tokens, "repetition_penalty": body.repetition_penalty, "stop": body.stop or (),
    }  # fmt: skip
    seed = arguments["seed"]
    handle = track_request(request, engine.submit(served.name, "vlm", arguments, wants_progress=body.stream), seed)
    shared: dict[str, Any] = {
        "id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": served.name, "seed": seed,
    }  # fmt: skip
    if body.stream:
        wants_usage = body.stream_options is not None and body.stream_options.include_usage
        head = await sse.first_progress(handle, request)
        return sse.stream(chunks(handle, head, shared, body.n, wants_usage))
    result: ChatResult = await sse.await_result(handle, request)
    choices = [
        Choice(index=index, message=AnswerMessage(content=text), finish_reason=reason(finish))
        for index, (text, finish) in enumerate(zip(result.texts, result.finish_reasons, strict=True))
    ]
    return ChatAnswer(
        choices=choices, usage=usage(handle, result), metrics=metrics(result.stats), notes=list(result.notes), **shared
    )


async def chunks(
    handle: RequestHandle, head: ChatProgress | None, shared: dict[str, Any], n: int, wants_usage: bool
) -> AsyncIterator[bytes]:
    """Yield the deltas of every choice, the finish reasons, the metrics and, if wanted, the usage."""

    def piece(index: int, delta: Delta) -> bytes:
        return sse.event(ChatChunk(choices=[ChunkChoice(index=index, delta=delta)], **shared))

    async with handle:
        for index in range(n):
            yield piece(index, Delta(role="assistant", content=""))
        progress = head
        while progress is not None:
            for index, text in enumerate(progress.pieces):
                if text:
                    yield piece(index, Delta(content=text))
            progress = await anext(handle, None)
        result: ChatResult = await handle.result()
        metrics_object = metrics(result.stats)
        for index, finish in enumerate(result.finish_reasons):
            last = ChunkChoice(index=index, delta=Delta(), finish_reason=reason(finish))
            yield sse.event(ChatChunk(choices=[last], metrics=metrics_object, notes=list(result.notes), **shared))
        if wants_usage:
            yield sse.event(ChatChunk(choices=[], usage=usage(handle, result), metrics=metrics_object, **shared))
        yield b"data: [DONE]\n\n"


def turns(messages: list[Message], most_pixels: int, n: int = 1) -> list[dict[str, Any]]:
    """Return messages in the format of pipelines, with decoded images; each of `n` choices reads them."""
    made, count, length = [], 0, 0
    for message in messages:
        content = []
        for part in parts_of(message.content):
            if isinstance(part, ImagePart):
                count += 1
                if count > MOST_PICTURES or count * n > MOST_READ:
                    raise InvalidArgument(
                        f"there are more than {min(MOST_PICTURES, MOST_READ // n)} pictures (with n={n}); send fewer."
                    )
                content.append({"type": "image", "image": pictures.from_data_url(part.image_url.url, most_pixels)})
                continue
            length += len(part.text)
            if length > MOST_TEXT:
                raise InvalidArgument(f"the messages have more than {MOST_TEXT:,} characters; send less.")
            content.append({"type": "text", "text": part.text})
        made.append({"role": "system" if message.role == "developer" else message.role, "content": content})
    return made


def parts_of(content: str | list[TextPart | ImagePart] | None) -> list[TextPart | ImagePart]:
    """Return content as parts; null content (of an assistant message) becomes one empty text part."""
    return content if isinstance(content, list) else [TextPart(type="text", text=content or "")]


def reason(finish: str) -> Literal["stop", "length"]:
    return "length" if finish == "length" else "stop"


def usage(handle: RequestHandle, result: ChatResult) -> ChatUsage:
    """Return the token usage of all choices; their shared prompt counts once."""
    read, made = handle.prompt_tokens // len(result.texts), sum(map(len, result.all_tokens))
    return ChatUsage(prompt_tokens=read, completion_tokens=made, total_tokens=read + made)
