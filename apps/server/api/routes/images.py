"""`POST /v1/images/generations`: images, whole or with previews."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from PIL import Image

from polydraft.apps.server.api import pictures, sse
from polydraft.apps.server.api.ignored import NamingRoute, note_ignored
from polydraft.apps.server.api.routes.documented import EVENTS, WORK, TheEngine, TheSettings, track_request
from polydraft.apps.server.api.schemas.common import ignored, metrics
from polydraft.apps.server.api.schemas.images import (
    USUAL_SIZES,
    CompletedImage,
    ImageRequest,
    ImagesAnswer,
    ImageUsage,
    InputDetails,
    PartialImage,
    Picture,
)
from polydraft.apps.server.engine.handle import RequestHandle
from polydraft.modalities.image.recipe import ImageRecipe
from polydraft.modalities.image.request import ImageProgress
from polydraft.modalities.image.result import ImageResult

router: APIRouter = APIRouter(tags=["images"], route_class=NamingRoute)
PICTURES: dict[str, Any] = {
    "content": {"text/event-stream": EVENTS},
    "description": "Pictures, or their events: PartialImage and CompletedImage.",
}


@router.post("/v1/images/generations", response_model=ImagesAnswer, responses=WORK | {200: PICTURES})
async def generate(body: ImageRequest, request: Request, engine: TheEngine, settings: TheSettings) -> Any:
    """Generate images; with `stream`, previews come first, as server-sent events."""
    served = engine.model(body.model, "image")
    unused = ["partial_images"] if body.partial_images and not body.stream else []
    note_ignored(request, ignored(body) + unused)
    prime = None
    if body.prime is not None:
        prime = await asyncio.to_thread(pictures.from_data_url, body.prime, settings.max_pixels)
    arguments = body.drawing() | {
        "prompt": body.prompt, "n": body.n, "guidance_scale": body.guidance_scale, "min_p": body.min_p,
        "size": f"~{body.size}" if body.size in USUAL_SIZES else body.size, "iterations": body.iterations,
        "negative_prompt": body.negative_prompt, "prime": prime,
        "partial_images": body.partial_images if body.stream else 0,
    }  # fmt: skip
    handle = track_request(
        request, engine.submit(served.name, "image", arguments, wants_progress=body.stream), arguments["seed"]
    )
    if body.stream:
        head = await sse.first_progress(handle, request)
        return sse.stream(events(handle, head, body))
    result: ImageResult = await sse.await_result(handle, request)
    files = await asyncio.to_thread(all_files, result, body)
    return ImagesAnswer(
        created=int(time.time()), model=served.name, size=size_of(result.image), output_format=body.output_format,
        data=[as_asked(file, result.recipe.for_image(index), body) for index, file in enumerate(files)],
        usage=usage(handle, result), ignored_words=list(result.ignored_words), metrics=metrics(result.stats),
    )  # fmt: skip


async def events(handle: RequestHandle, head: ImageProgress | None, body: ImageRequest) -> AsyncIterator[bytes]:
    """Yield previews as events, then the finished images."""
    async with handle:
        count, progress = 0, head
        while progress is not None:
            for index, picture in enumerate(progress.images):
                file = await asyncio.to_thread(file_of, picture, body, {"state": "unfinished"})
                yield sse.event(
                    PartialImage(
                        partial_image_index=count,
                        index=index,
                        b64_json=file,
                        created_at=int(time.time()),
                        size=size_of(picture),
                        output_format=body.output_format,
                    ),
                    "image_generation.partial_image",
                )
            count += bool(progress.images)
            progress = await anext(handle, None)
        result: ImageResult = await handle.result()
        files = await asyncio.to_thread(all_files, result, body)
        for index, (file, seed) in enumerate(zip(files, result.seeds, strict=True)):
            done = CompletedImage(
                index=index, b64_json=file, created_at=int(time.time()), seed=seed, usage=usage(handle, result),
                metrics=metrics(result.stats), size=size_of(result.image), output_format=body.output_format,
                revised_prompt=revised(result.recipe.for_image(index)), ignored_words=list(result.ignored_words),
            )  # fmt: skip
            yield sse.event(done, "image_generation.completed")


def all_files(result: ImageResult, body: ImageRequest) -> list[str]:
    """Return every image as a file in Base64."""
    return [file_of(picture, body, result.recipe.for_image(index).notes) for index, picture in enumerate(result.images)]


def as_asked(file: str, recipe: ImageRecipe, body: ImageRequest) -> Picture:
    """Return an image in the requested response format: Base64, or a `data:` URL."""
    fields: dict[str, Any] = {"seed": recipe.seeds[0], "revised_prompt": revised(recipe)}
    if body.response_format == "url":
        return Picture(url=f"data:image/{body.output_format};base64,{file}", **fields)
    return Picture(b64_json=file, **fields)


def revised(recipe: ImageRecipe) -> str | None:
    """Return the caption that an image was generated from, or None if it equals the prompt."""
    return None if recipe.captions == recipe.prompts else recipe.captions[0]


def size_of(picture: Image.Image) -> str:
    return f"{picture.width}x{picture.height}"


def file_of(picture: Image.Image, body: ImageRequest, notes: Mapping[str, str]) -> str:
    return pictures.encode_base64(picture, body.output_format, body.output_compression, notes)


def usage(handle: RequestHandle, result: ImageResult) -> ImageUsage:
    read, made = handle.prompt_tokens, result.stats.tokens
    return ImageUsage(
        input_tokens=read, output_tokens=made, total_tokens=read + made,
        input_tokens_details=InputDetails(text_tokens=read, image_tokens=0),
    )  # fmt: skip
