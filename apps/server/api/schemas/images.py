"""`POST /v1/images/generations`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from polydraft.apps.server.api.schemas.chat import DATA_URL
from polydraft.apps.server.api.schemas.common import (
    Ignored,
    Metrics,
    Only,
    ResponseModel,
    SamplingFields,
    Text,
    TokenUsage,
)

MOST_PICTURES, MOST_ITERATIONS = 10, 4096
LONGEST_PROMPT = 2000
Format = Literal["png", "webp", "jpeg"]
USUAL_SIZES = frozenset(  # that OpenAI's clients send whatever model is served
    {"256x256", "512x512", "1024x1024", "1536x1024", "1024x1536", "1792x1024", "1024x1792"}
)


class ImageRequest(SamplingFields):
    """Image generation from a prompt; streamed, previews of the verified tokens come first."""

    prompt: Annotated[str, Field(min_length=1, max_length=LONGEST_PROMPT)]
    model: Text | None = None
    n: Annotated[int, Field(ge=1, le=MOST_PICTURES, description="Picture i has seed + i.")] = 1
    size: Annotated[
        str,
        Field(
            pattern=r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$",
            description="What the model cannot draw is refused, but for OpenAI's sizes: the answer says the nearest.",
        ),
    ] = "auto"
    response_format: Annotated[
        Literal["b64_json", "url"], Field(description="A url is a data: URL; streams bear b64_json alone.")
    ] = "b64_json"
    output_format: Format = "png"
    output_compression: Annotated[int, Field(ge=0, le=100, description="Quality of jpeg and webp.")] = 95
    stream: bool = False
    partial_images: Annotated[int, Field(ge=0, le=3, description="With `stream`: unfinished pictures.")] = 0
    guidance_scale: Annotated[float | None, Field(ge=0, le=50, description="1 is off.")] = None
    min_p: Annotated[float | None, Field(ge=0, lt=1, description="0 is off.")] = None
    negative_prompt: Annotated[
        str | None, Field(max_length=LONGEST_PROMPT, description="What guidance leads away from.")
    ] = None
    prime: Annotated[
        str | None, Field(pattern=DATA_URL, description="A picture to go on from, for models that can.")
    ] = None
    iterations: Annotated[
        int | None, Field(ge=1, le=MOST_ITERATIONS, description="Sets of tokens of a picture, for models of sets.")
    ] = None
    background: Annotated[Literal["auto", "opaque"], Only("pictures have no transparency here; use auto or opaque")] = (
        "auto"
    )
    quality: Annotated[
        Literal["auto", "standard", "hd", "low", "medium", "high"], Ignored(unless=("auto", "standard"))
    ] = "auto"
    style: Annotated[Literal["vivid", "natural"] | None, Ignored()] = None
    moderation: Annotated[Literal["auto", "low"], Ignored(unless=("auto",))] = "auto"


class Picture(ResponseModel):
    """Generated image in `b64_json` or `url`; `revised_prompt` is set if it differs from the prompt."""

    b64_json: str | None = None
    url: str | None = None
    revised_prompt: str | None = None
    seed: Annotated[int, Field(ge=0)]


class InputDetails(ResponseModel):
    text_tokens: int
    image_tokens: int


class ImageUsage(TokenUsage):
    input_tokens_details: InputDetails


class ImagesAnswer(ResponseModel):
    """Generated images; `ignored_words` are words of the prompt that are not shown."""

    created: int
    model: str
    data: list[Picture]
    size: str
    output_format: Format
    background: Literal["opaque"] = "opaque"
    quality: Literal["auto"] = "auto"
    usage: ImageUsage
    ignored_words: list[str]
    metrics: Metrics


class PartialImage(ResponseModel):
    """Preview of image `index` of `n`."""

    type: Literal["image_generation.partial_image"] = "image_generation.partial_image"
    partial_image_index: int
    index: int
    b64_json: str
    created_at: int
    size: str
    quality: Literal["auto"] = "auto"
    background: Literal["opaque"] = "opaque"
    output_format: Format


class CompletedImage(ResponseModel):
    type: Literal["image_generation.completed"] = "image_generation.completed"
    index: int
    b64_json: str
    created_at: int
    size: str
    quality: Literal["auto"] = "auto"
    background: Literal["opaque"] = "opaque"
    output_format: Format
    revised_prompt: str | None = None
    ignored_words: list[str]
    seed: int
    usage: ImageUsage
    metrics: Metrics
