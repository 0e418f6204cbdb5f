"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from polydraft.apps.server.api.schemas.common import Asked, Drawn, Metrics, Text, Told

MOST_MESSAGES, MOST_PARTS, LONGEST_TEXT = 64, 32, 20_000
MOST_TOKENS = 4096
MOST_STOPS, LONGEST_STOP = 4, 256
DATA_URL = r"^\s*[dD][aA][tT][aA]:[^,]*,"  # what it holds is judged by its content (`image_io`)


class TextPart(Asked):
    type: Literal["text"]
    text: Annotated[str, Field(max_length=LONGEST_TEXT)]


class ImageUrl(Asked):
    url: Annotated[str, Field(pattern=DATA_URL, description="Pictures travel in the request; none is fetched.")]
    detail: Literal["auto", "low", "high"] = "auto"


class ImagePart(Asked):
    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class Message(Asked):
    role: Literal["system", "developer", "user", "assistant"]
    content: (
        Annotated[str, Field(max_length=LONGEST_TEXT)]
        | Annotated[list[Part], Field(min_length=1, max_length=MOST_PARTS)]
    )
    name: Annotated[str | None, Field(max_length=64)] = None


class StreamOptions(Asked):
    include_usage: bool = False


class ChatRequest(Drawn):
    """A conversation that ends with a question; pictures stand where they are shown."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    model: Text | None = None
    max_tokens: Annotated[int | None, Field(ge=1, le=MOST_TOKENS, description="256 unless said.")] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1, le=MOST_TOKENS, description="The same.")] = None
    min_tokens: Annotated[int, Field(ge=0, le=MOST_TOKENS)] = 0
    repetition_penalty: Annotated[float | None, Field(ge=0.1, le=10, description="1 is off.")] = None
    stop: (
        Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
        | Annotated[list[Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]], Field(max_length=MOST_STOPS)]
        | None
    ) = Field(None, description="Strings that end the answer, which is left without them.")
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=1)] = 1
    user: Annotated[str | None, Field(max_length=256)] = None


class AnswerMessage(Told):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class Choice(Told):
    index: int = 0
    message: AnswerMessage
    finish_reason: Literal["stop", "length"]
    logprobs: None = None


class ChatUsage(Told):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatAnswer(Told):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: ChatUsage
    seed: int
    metrics: Metrics


class Delta(Told):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(Told):
    index: int = 0
    delta: Delta
    finish_reason: Literal["stop", "length"] | None = None
    logprobs: None = None


class ChatChunk(Told):
    """usage and metrics come with the last chunk but one where usage was asked for, metrics always with the last."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | None = None
    seed: int
    metrics: Metrics | None = None
