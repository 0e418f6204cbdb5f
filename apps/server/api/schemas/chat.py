"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from polydraft.apps.server.api.schemas.common import (
    Ignored,
    Metrics,
    Only,
    RequestModel,
    ResponseModel,
    SamplingFields,
    Text,
)

if TYPE_CHECKING:
    from pydantic import ConfigDict

MOST_MESSAGES, MOST_PARTS, LONGEST_TEXT = 64, 32, 20_000
MOST_TOKENS, MOST_CHOICES = 4096, 8
MOST_STOPS, LONGEST_STOP = 4, 256
DATA_URL = r"^\s*[dD][aA][tT][aA]:[^,]*,"  # the content is checked when it is decoded (`image_io`)
NO_TOOLS = "tools are not called here; leave them out"
NO_PENALTY = "only 0 is possible here; repetition_penalty is what makes tokens less likely that were there"


class Part(RequestModel):
    """Part of a message; unknown fields that clients add, such as `cache_control`, are ignored."""

    model_config: ClassVar[ConfigDict]
    model_config = RequestModel.model_config | {"extra": "allow", "json_schema_extra": {"additionalProperties": True}}


class TextPart(Part):
    type: Literal["text"]
    text: Annotated[str, Field(max_length=LONGEST_TEXT)]


class ImageUrl(Part):
    url: Annotated[str, Field(pattern=DATA_URL, description="Pictures travel in the request; none is fetched.")]
    detail: Annotated[Literal["auto", "low", "high", "original"], Ignored(unless=("auto",))] = "auto"


class ImagePart(Part):
    type: Literal["image_url"]
    image_url: ImageUrl


Parts = Annotated[
    list[Annotated[TextPart | ImagePart, Field(discriminator="type")]], Field(min_length=1, max_length=MOST_PARTS)
]
Content = Annotated[str, Field(max_length=LONGEST_TEXT)] | Parts


class AnswerMessage(ResponseModel):
    """Message of the model; fields added here are accepted in requests too, see `AssistantMessage`."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class SystemMessage(RequestModel):
    role: Literal["system", "developer"]
    content: Content
    name: Annotated[str | None, Field(max_length=64), Ignored()] = None


class UserMessage(RequestModel):
    role: Literal["user"]
    content: Content
    name: Annotated[str | None, Field(max_length=64), Ignored()] = None


class AssistantMessage(RequestModel, AnswerMessage):
    """Earlier answer, as this server sent it or as clients store it, with additional null fields."""

    model_config: ClassVar[ConfigDict] = RequestModel.model_config

    role: Literal["assistant"]
    content: str | Parts | None = None  # type: ignore[assignment]  # wider than the response's
    name: Annotated[str | None, Field(max_length=64), Ignored()] = None
    annotations: Annotated[list[Any] | None, Ignored(unless=([],))] = None
    audio: Annotated[None, Only("no sound is answered here; leave audio out")] = None
    function_call: Annotated[None, Only("functions are not called here; leave function_call out")] = None
    tool_calls: Annotated[list[Any] | None, Field(max_length=0), Only(NO_TOOLS)] = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage, Field(discriminator="role")]


class StreamOptions(RequestModel):
    include_usage: bool = False
    include_obfuscation: Annotated[bool, Ignored(unless=(False,))] = False


class ResponseFormat(RequestModel):
    type: Literal["text"]


class ChatRequest(SamplingFields):
    """Conversation that ends with a question; image parts stand at their position in the text."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    model: Text | None = None
    max_tokens: Annotated[
        int | None, Field(ge=1, le=MOST_TOKENS, description="Default: the model's generation config, or 256.")
    ] = None
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
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES, description="Choice i has seed + i.")] = 1

    # Fields of OpenAI's clients whose only accepted value is the default behaviour.
    frequency_penalty: Annotated[float, Field(ge=0, le=0), Only(NO_PENALTY)] = 0
    presence_penalty: Annotated[float, Field(ge=0, le=0), Only(NO_PENALTY)] = 0
    logit_bias: Annotated[
        dict[str, Any], Field(max_length=0), Only("tokens cannot be made likelier here; leave logit_bias out")
    ] = {}
    logprobs: Annotated[Literal[False], Only("probabilities of tokens are not told here; leave logprobs out")] = False
    top_logprobs: Annotated[
        int, Field(ge=0, le=0), Only("probabilities of tokens are not told here; leave top_logprobs out")
    ] = 0
    tools: Annotated[list[Any], Field(max_length=0), Only(NO_TOOLS)] = []
    tool_choice: Annotated[Literal["none", "auto"], Only(NO_TOOLS)] = "auto"
    functions: Annotated[list[Any], Field(max_length=0), Only(NO_TOOLS)] = []
    function_call: Annotated[Literal["none", "auto"], Only(NO_TOOLS)] = "auto"
    response_format: Annotated[
        ResponseFormat | None, Only('answers are free text here; leave response_format out, or use {"type": "text"}')
    ] = None
    modalities: Annotated[
        list[Literal["text"]], Field(min_length=1, max_length=1), Only('answers are text here; use ["text"]')
    ] = ["text"]
    audio: Annotated[None, Only("no sound is answered here; leave audio out, or ask /v1/audio/speech")] = None

    # Fields without effect.
    metadata: Annotated[dict[str, Any] | None, Ignored(unless=({},))] = None
    store: Annotated[bool, Ignored(unless=(False,))] = False
    service_tier: Annotated[Text | None, Ignored(unless=("auto", "default"))] = None
    parallel_tool_calls: Annotated[bool | None, Ignored()] = None
    prompt_cache_key: Annotated[Text | None, Ignored()] = None
    prompt_cache_retention: Annotated[Text | None, Ignored()] = None
    prediction: Annotated[dict[str, Any] | None, Ignored()] = None
    reasoning_effort: Annotated[Text | None, Ignored(unless=("none",))] = None
    verbosity: Annotated[Text | None, Ignored()] = None


class Choice(ResponseModel):
    index: int = 0
    message: AnswerMessage
    finish_reason: Literal["stop", "length"]
    logprobs: None = None


class ChatUsage(ResponseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatAnswer(ResponseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: ChatUsage
    seed: int
    metrics: Metrics
    notes: list[str] = Field([], description="What to know about the pictures to take the answer rightly.")


class Delta(ResponseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(ResponseModel):
    index: int = 0
    delta: Delta
    finish_reason: Literal["stop", "length"] | None = None
    logprobs: None = None


class ChatChunk(ResponseModel):
    """Chunk of a streamed answer.

    The last chunk has `metrics` and, if there are any, `notes`; with `include_usage` one more chunk has `usage` and
    `metrics`.
    """

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | None = None
    seed: int
    metrics: Metrics | None = None
    notes: list[str] | None = None
