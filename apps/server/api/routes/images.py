"""`POST /v1/images/generations`: pictures, whole or as they fill in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from PIL import Image

from polydraft.apps.server.api import pictures, sse
from polydraft.apps.server.api.ignored import NamingRoute, note_ignored
from polydraft.apps.server.api.routes.documented import EVENTS, WORK, TheEngine, TheSettings, noted
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
from polydraft.apps.server.engine.ticket import Ticket
from polydraft.modalities.image.recipe import Recipe
from polydraft.modalities.image.result import ImageResult
from polydraft.modalities.image.run import ImageNews

router = APIRouter(tags=["images"], route_class=NamingRoute)
PICTURES = {
    "content": {"text/event-stream": EVENTS},
    "description": "Pictures, or their events: PartialImage and CompletedImage.",
}


@router.post("/v1/images/generations", response_model=ImagesAnswer, responses=WORK | {200: PICTURES})
async def generate(asked: ImageRequest, request: Request, engine: TheEngine, settings: TheSettings) -> Any:
    """Draw a prompt; with `stream` unfinished pictures come first, as server-sent events."""
    served = engine.model(asked.model, "image")
    unused = ["partial_images"] if asked.partial_images and not asked.stream else []
    note_ignored(request, ignored(asked) + unused)
    prime = None
    if asked.prime is not None:
        prime = await asyncio.to_thread(pictures.from_data_url, asked.prime, settings.max_pixels)
    arguments = asked.drawing() | {
        "prompt": asked.prompt, "n": asked.n, "guidance_scale": asked.guidance_scale, "min_p": asked.min_p,
        "size": f"~{asked.size}" if asked.size in USUAL_SIZES else asked.size, "iterations": asked.iterations,
        "negative_prompt": asked.negative_prompt, "prime": prime,
        "partial_images": asked.partial_images if asked.stream else 0,
    }  # fmt: skip
    ticket = noted(request, engine.submit(served.name, "image", arguments, news=asked.stream), arguments["seed"])
    if asked.stream:
        head = await sse.first(ticket, request)
        return sse.stream(events(ticket, head, asked))
    result: ImageResult = await sse.whole(ticket, request)
    files = await asyncio.to_thread(all_files, result, asked)
    return ImagesAnswer(
        created=int(time.time()), model=served.name, size=size_of(result.image), output_format=asked.output_format,
        data=[as_asked(file, result.recipe.of(index), asked) for index, file in enumerate(files)],
        usage=usage(ticket, result), ignored_words=list(result.ignored_words), metrics=metrics(result.stats),
    )  # fmt: skip


async def events(ticket: Ticket, head: ImageNews | None, asked: ImageRequest) -> AsyncIterator[bytes]:
    """Unfinished pictures, then the whole ones."""
    async with ticket:
        count, news = 0, head
        while news is not None:
            for index, picture in enumerate(news.pictures):
                file = await asyncio.to_thread(file_of, picture, asked, {"state": "unfinished"})
                yield sse.event(
                    PartialImage(
                        partial_image_index=count,
                        index=index,
                        b64_json=file,
                        created_at=int(time.time()),
                        size=size_of(picture),
                        output_format=asked.output_format,
                    ),
                    "image_generation.partial_image",
                )
            count += bool(news.pictures)
            news = await anext(ticket, None)
        result: ImageResult = await ticket.result()
        files = await asyncio.to_thread(all_files, result, asked)
        for index, (file, seed) in enumerate(zip(files, result.seeds, strict=True)):
            done = CompletedImage(
                index=index, b64_json=file, created_at=int(time.time()), seed=seed, usage=usage(ticket, result),
                metrics=metrics(result.stats), size=size_of(result.image), output_format=asked.output_format,
                revised_prompt=revised(result.recipe.of(index)), ignored_words=list(result.ignored_words),
            )  # fmt: skip
            yield sse.event(done, "image_generation.completed")


def all_files(result: ImageResult, asked: ImageRequest) -> list[str]:
    """Every picture as a file, Base64."""
    return [
        file_of(picture, asked, result.recipe.of(index).notes) for index, picture in enumerate(result.images)
    ]


def as_asked(file: str, recipe: Recipe, asked: ImageRequest) -> Picture:
    """Return a picture as Base64, or as a URL that holds it."""
    told: dict[str, Any] = {"seed": recipe.seeds[0], "revised_prompt": revised(recipe)}
    if asked.response_format == "url":
        return Picture(url=f"data:image/{asked.output_format};base64,{file}", **told)
    return Picture(b64_json=file, **told)


def revised(recipe: Recipe) -> str | None:
    """Return the caption of one picture where it is not the prompt."""
    return None if recipe.captions == recipe.prompts else recipe.captions[0]


def size_of(picture: Image.Image) -> str:
    return f"{picture.width}x{picture.height}"


def file_of(picture: Image.Image, asked: ImageRequest, notes: Mapping[str, str]) -> str:
    return pictures.written(picture, asked.output_format, asked.output_compression, notes)


def usage(ticket: Ticket, result: ImageResult) -> ImageUsage:
    read, made = ticket.prompt_tokens, result.stats.tokens
    return ImageUsage(
        input_tokens=read, output_tokens=made, total_tokens=read + made,
        input_tokens_details=InputDetails(text_tokens=read, image_tokens=0),
    )  # fmt: skip
