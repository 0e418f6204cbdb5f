"""Requests of every modality as a client makes them, with the time to the first picture, sound or word.

answer = await ask(http, "speech", seed=3, plain=False)      # answer.first, answer.seconds, answer.content
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import numpy as np
from PIL import Image

from polydraft.modalities.world.scene import place_objects, random_composition

SCENES = (
    "two frogs on a blue background", "a cat above a star on a navy background", "a rocket on a yellow background",
    "a panda to the left of a rocket on a pink background",
)  # fmt: skip
LINES = (
    "We will meet again tomorrow.", "Is that the right way to the station?", "Good morning, how are you?",
    "The quick brown fox jumps over the lazy dog.",
)  # fmt: skip
QUESTIONS = ("Describe the picture.", "What is in the picture?", "What is the background?")
PATHS = {"image": "/v1/images/generations", "speech": "/v1/audio/speech", "vlm": "/v1/chat/completions"}
AGAIN = (429, 503)


@dataclass(frozen=True)
class ServerAnswer:
    """Seconds to the first news and to the end, what came, and how often it was refused before."""

    first: float
    seconds: float
    content: str
    refused: int = 0


def body(modality: str, seed: int, plain: bool) -> dict[str, Any]:
    """Build a streaming request; equal seeds build equal requests."""
    more = {"seed": seed, "speculative": not plain}
    if modality == "image":
        return more | {"prompt": SCENES[seed % len(SCENES)], "stream": True, "partial_images": 1}
    if modality == "speech":
        return more | {"input": LINES[seed % len(LINES)], "response_format": "pcm"}
    question = {"type": "text", "text": QUESTIONS[seed % len(QUESTIONS)]}
    shown = {"type": "image_url", "image_url": {"url": scene(seed % len(SCENES))}}
    return more | {"messages": [{"role": "user", "content": [shown, question]}], "stream": True}


@cache
def scene(seed: int) -> str:
    """Return an image of the kind that the embedded model answers about."""
    rng, file = np.random.default_rng(seed), io.BytesIO()
    Image.fromarray(place_objects(random_composition(rng), rng).render()).save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


async def ask(http: httpx.AsyncClient, modality: str, seed: int, plain: bool, headers: dict[str, str]) -> ServerAnswer:
    """Send one request, again while it is refused for now; raises where it fails."""
    refused, begun = 0, time.perf_counter()
    while True:
        first, pieces = 0.0, []
        async with http.stream("POST", PATHS[modality], json=body(modality, seed, plain), headers=headers) as answer:
            if answer.status_code in AGAIN:
                refused += 1
                await answer.aread()
                await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
                continue
            if answer.status_code != 200:
                raise RuntimeError(f"{answer.status_code}: {(await answer.aread())[:300]!r}")
            if modality == "speech":
                sound = b""  # whatever pieces it comes in
                async for piece in answer.aiter_bytes():
                    first = first or time.perf_counter() - begun
                    sound += piece
                content = base64.b64encode(sound).decode()
            else:
                async for line in answer.aiter_lines():
                    metrics = metrics_of(modality, line)
                    if metrics is not None:
                        first = first or time.perf_counter() - begun
                        pieces.append(metrics)
                content = "".join(pieces) if modality == "vlm" else pieces[-1]
        return ServerAnswer(first, time.perf_counter() - begun, content, refused)


def metrics_of(modality: str, line: str) -> str | None:
    """Return the image or the text of an event."""
    if not line.startswith("data: {"):
        return None
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        raise RuntimeError(event["error"]["message"])
    if modality == "image":
        return event.get("b64_json")
    return event["choices"][0]["delta"]["content"] or None if event["choices"] else None
