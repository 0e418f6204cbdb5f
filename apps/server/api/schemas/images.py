"""`POST /v1/images/generations`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from polydraft.apps.server.api.schemas.common import Drawn, Metrics, Text, Told

MOST_PICTURES = 10
LONGEST_PROMPT = 2000
Format = Literal["png", "webp", "jpeg"]


class ImageRequest(Drawn):
    """Pictures of a prompt. Streamed, they come unfinished first, drawn from the tokens that are already verified."""

    prompt: Annotated[str, Field(min_length=1, max_length=LONGEST_PROMPT)]
    model: Text | None = None
    n: Annotated[int, Field(ge=1, le=MOST_PICTURES, description="Picture i has seed + i.")] = 1
    size: Annotated[str, Field(pattern=r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$")] = "auto"
    response_format: Literal["b64_json"] = "b64_json"
    output_format: Format = "png"
    output_compression: Annotated[int, Field(ge=0, le=100, description="Quality of jpeg and webp.")] = 95
    stream: bool = False
    partial_images: Annotated[int, Field(ge=0, le=3, description="With `stream`: unfinished pictures.")] = 0
    guidance_scale: Annotated[float | None, Field(ge=0, le=50, description="1 is off.")] = None
    min_p: Annotated[float | None, Field(ge=0, lt=1, description="0 is off.")] = None
    background: Literal["auto", "opaque"] = "auto"
    quality: Literal["auto", "standard"] = "auto"
    user: Annotated[str | None, Field(max_length=256)] = None


class Picture(Told):
    b64_json: str
    seed: Annotated[int, Field(ge=0)]


class InputDetails(Told):
    text_tokens: int
    image_tokens: int


class ImageUsage(Told):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails


class ImagesAnswer(Told):
    """ignored_words: of the prompt, which the model does not know."""

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


class PartialImage(Told):
    """index: of n pictures, which."""

    type: Literal["image_generation.partial_image"] = "image_generation.partial_image"
    partial_image_index: int
    index: int
    b64_json: str
    created_at: int
    size: str
    quality: Literal["auto"] = "auto"
    background: Literal["opaque"] = "opaque"
    output_format: Format


class CompletedImage(Told):
    type: Literal["image_generation.completed"] = "image_generation.completed"
    index: int
    b64_json: str
    created_at: int
    size: str
    quality: Literal["auto"] = "auto"
    background: Literal["opaque"] = "opaque"
    output_format: Format
    seed: int
    usage: ImageUsage
    metrics: Metrics
