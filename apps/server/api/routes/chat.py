"""`POST /v1/chat/completions`: answers about pictures, whole or word by word."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import APIRouter, Request

from polydraft.apps.server.api import pictures, sse
from polydraft.apps.server.api.routes.documented import EVENTS, WORK, TheEngine, TheSettings, noted
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
)
from polydraft.apps.server.api.schemas.common import metrics
from polydraft.apps.server.engine.ticket import Ticket
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.vlm.result import ChatResult
from polydraft.modalities.vlm.run import ChatNews

router = APIRouter(tags=["chat"])
USUAL_TOKENS = 256
MOST_PICTURES = 8
ANSWER = {"content": {"text/event-stream": EVENTS}, "description": "An answer, or its events: ChatChunk."}


@router.post("/v1/chat/completions", response_model=ChatAnswer, responses=WORK | {200: ANSWER})
async def complete(asked: ChatRequest, request: Request, engine: TheEngine, settings: TheSettings) -> Any:
    """Answer the last message; with `stream` as server-sent events."""
    served = engine.model(asked.model, "vlm")
    most = asked.max_completion_tokens or asked.max_tokens or USUAL_TOKENS
    if asked.min_tokens > most:
        raise InvalidArgument(f"min_tokens={asked.min_tokens} is more than max_tokens={most}; change one.")
    if asked.stream_options is not None and not asked.stream:
        raise InvalidArgument("stream_options comes with stream=true; set both, or neither.")
    arguments = asked.drawing() | {
        "image": None, "messages": await asyncio.to_thread(turns, asked.messages, settings.max_pixels),
        "max_new_tokens": most, "min_new_tokens": asked.min_tokens, "repetition_penalty": asked.repetition_penalty,
        "stop": asked.stop or (),
    }  # fmt: skip
    seed = arguments["seed"]
    ticket = noted(request, engine.submit(served.name, "vlm", arguments, news=asked.stream), seed)
    shared: dict[str, Any] = {
        "id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": served.name, "seed": seed,
    }  # fmt: skip
    if asked.stream:
        wants_usage = asked.stream_options is not None and asked.stream_options.include_usage
        head = await sse.first(ticket, request)
        return sse.stream(chunks(ticket, head, shared, wants_usage))
    result: ChatResult = await sse.whole(ticket, request)
    choice = Choice(message=AnswerMessage(content=result.text), finish_reason=reason(result))
    return ChatAnswer(choices=[choice], usage=usage(ticket, result), metrics=metrics(result.stats), **shared)


async def chunks(
    ticket: Ticket, head: ChatNews | None, shared: dict[str, Any], wants_usage: bool
) -> AsyncIterator[bytes]:
    """The answer piece by piece, why it ended with what drafting did, and what it cost where that is wanted."""
    async with ticket:
        yield sse.event(ChatChunk(choices=[ChunkChoice(delta=Delta(role="assistant", content=""))], **shared))
        news = head
        while news is not None:
            if news.text:
                yield sse.event(ChatChunk(choices=[ChunkChoice(delta=Delta(content=news.text))], **shared))
            news = await anext(ticket, None)
        result: ChatResult = await ticket.result()
        told = metrics(result.stats)
        last = ChunkChoice(delta=Delta(), finish_reason=reason(result))
        yield sse.event(ChatChunk(choices=[last], metrics=told, **shared))
        if wants_usage:
            yield sse.event(ChatChunk(choices=[], usage=usage(ticket, result), metrics=told, **shared))
        yield b"data: [DONE]\n\n"


def turns(messages: list[Message], most_pixels: int) -> list[dict[str, Any]]:
    """Messages as pipelines take them, with their pictures decoded."""
    made, count = [], 0
    for message in messages:
        content: Any = message.content
        if not isinstance(message.content, str):
            content = []
            for part in message.content:
                if not isinstance(part, ImagePart):
                    content.append({"type": "text", "text": part.text})
                    continue
                count += 1
                if count > MOST_PICTURES:
                    raise InvalidArgument(f"there are more than {MOST_PICTURES} pictures; send fewer.")
                content.append({"type": "image", "image": pictures.from_data_url(part.image_url.url, most_pixels)})
        made.append({"role": "system" if message.role == "developer" else message.role, "content": content})
    return made


def reason(result: ChatResult) -> Literal["stop", "length"]:
    return "length" if result.finish_reason == "length" else "stop"


def usage(ticket: Ticket, result: ChatResult) -> ChatUsage:
    read, made = ticket.prompt_tokens, sum(map(len, result.all_tokens))
    return ChatUsage(prompt_tokens=read, completion_tokens=made, total_tokens=read + made)
