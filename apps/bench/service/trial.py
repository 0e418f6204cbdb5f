"""`polydraft bench trial`: a server in everything that happens to one at once, every whole answer compared.

polydraft bench trial --clients 12 --seconds 100

Clients of all modalities ask, and leave at random in the middle of answers; pictures of 1x20,000 pixels are sent, whose
resizing would take gigabytes; questions hold a word whose embedding is not a number, so that rows turn NaN. Nobody
reads standard error, and at the end SIGTERM comes in the middle of an answer. Whatever was answered must be the
answer of its seed alone, what was refused a refusal, and the exit status 0.
"""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from PIL import Image

from polydraft.apps.bench.service.asking import AGAIN, PATHS, ask, body
from polydraft.apps.bench.service.load import Asked
from polydraft.apps.bench.service.process import PATIENCE, Server, started
from polydraft.apps.commands.shared.terminal import note
from polydraft.core.folders.weight_files import read_tensors

SEEDS = 4  # different requests of each modality
LEAVING = 0.25  # share of requests whose client leaves
THIN = (1, 20_000)  # pixels
WORD = "~"  # has no number in the model that is served, and no other request holds it
EVERY = 1.0  # seconds between two requests that must fail
LONG_TEXT = "We will meet again tomorrow. Is that the right way to the station? " * 6
EMBEDDING, HEAD = "language_model.model.embed_tokens.weight", "language_model.lm_head.weight"
REFUSED = range(400, 600)


@contextmanager
def with_broken_word() -> Iterator[Path]:
    """Yield a copy of tiny-vlm in which the embedding of `WORD` is not a number."""
    import torch
    from safetensors.torch import save_file

    from polydraft.modalities.loading import embedded

    with TemporaryDirectory() as place:
        folder = Path(copytree(embedded() / "tiny-vlm", Path(place) / "tiny-vlm"))
        target = folder / "target"
        config = json.loads((target / "config.json").read_text())
        config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = False
        (target / "config.json").write_text(json.dumps(config))
        vocabulary = json.loads((target / "tokenizer.json").read_text())["model"]["vocab"]
        weights = {name: tensor.clone() for name, tensor in read_tensors(target / "model.safetensors").items()}
        weights[HEAD] = weights[EMBEDDING].clone()  # ids may still be drawn
        weights[EMBEDDING][vocabulary[WORD]] = torch.nan
        save_file(weights, target / "model.safetensors", {"format": "pt"})
        yield folder


def run(clients: int, seconds: float, options: list[str]) -> dict[str, Any]:
    """Try a server of its own; return what was seen."""
    with with_broken_word() as vlm:
        models = ["--image", "tiny-image", "--speech", "tiny-speech", "--vlm", str(vlm)]
        with started([*models, *options], is_read=False) as server:
            return asyncio.run(tried(server, clients, seconds))


def tell(value: dict[str, Any]) -> bool:
    """Print what was seen; return whether all of it is as it must be."""
    seen = value["seen"]
    note(
        f"{seen.get('right', 0)} answers are their seeds' alone and {len(value['wrong'])} are not; "
        f"{seen.get('left', 0)} clients left; refused were {seen.get('thin', 0)} thin pictures and "
        f"{seen.get('broken', 0)} questions that turn NaN; {len(value['failed'])} other failures"
        f"{''.join(f'; {each}' for each in value['failed'][:3])}"
    )
    note(f"SIGTERM in an answer: {'whole' if value['drained'] else 'cut'}, exit status {value['exit']}")
    good = not value["wrong"] and not value["failed"] and value["drained"]
    return bool(good and value["exit"] == 0 and value["ready"] == 200 and seen.get("right"))


async def tried(server: Server, clients: int, seconds: float) -> dict[str, Any]:
    """Return how many answers were right, wrong, left and refused, what failed, and how the process ended."""
    seen: Counter[str] = Counter()
    wrong: list[Asked] = []
    failed: list[str] = []
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=httpx.Limits(max_connections=None)) as http:
        kinds = [(modality, seed) for modality, seed in itertools.product(PATHS, range(SEEDS))]
        alone = {asked: (await ask(http, *asked, False, {})).content for asked in kinds}
        whole = b"".join([piece async for piece in spoken(http)])
        end = time.perf_counter() + seconds
        note(f"{clients} clients for {seconds:g} s")

        async def client(number: int) -> None:
            chance = random.Random(number)
            while time.perf_counter() < end:
                asked = chance.choice(kinds)
                if chance.random() < LEAVING:
                    seen["left"] += await leave(http, *asked, chance.random())
                    continue
                try:
                    answer = await ask(http, *asked, False, {})
                except (RuntimeError, httpx.HTTPError) as error:
                    failed.append(f"{asked}: {error!s:.200}")
                    continue
                seen["right"] += answer.content == alone[asked]
                if answer.content != alone[asked]:
                    wrong.append(asked)

        async def must_fail(name: str, question: dict[str, Any]) -> None:
            while time.perf_counter() < end:
                answer = await http.post(PATHS["vlm"], json=question)
                if answer.status_code not in AGAIN:
                    seen[name] += 1
                    if answer.status_code not in REFUSED or "error" not in answer.json():
                        failed.append(f"{name}: {answer.status_code} {answer.text:.200}")
                await asyncio.sleep(EVERY)

        await asyncio.gather(
            *map(client, range(clients)), must_fail("thin", asking(Image.new("RGB", THIN), "What is in the picture?")),
            must_fail("broken", asking(Image.new("RGB", (64, 64)), f"What is {WORD} in the picture?")),
        )  # fmt: skip
        status = (await http.get("/ready")).status_code
        drained = await signalled(server, http, whole)
    return {"seen": dict(seen), "wrong": wrong, "failed": failed, "ready": status, "drained": drained,
            "exit": await asyncio.to_thread(server.wait, PATIENCE)}  # fmt: skip


def asking(picture: Image.Image, question: str) -> dict[str, Any]:
    """Return the body of a question about a picture."""
    file = io.BytesIO()
    picture.save(file, "png")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    return {"messages": [{"role": "user", "content": parts}], "seed": 1}


async def leave(http: httpx.AsyncClient, modality: str, seed: int, patience: float) -> bool:
    """Leave a request after so many seconds; return whether it was still under way."""

    async def answered() -> None:
        async with http.stream("POST", PATHS[modality], json=body(modality, seed, False)) as answer:
            async for _ in answer.aiter_bytes():
                pass

    try:
        await asyncio.wait_for(answered(), patience)
    except TimeoutError:
        return True
    return False


async def spoken(http: httpx.AsyncClient, at_first: Callable[[], Awaitable[None]] | None = None) -> Any:
    """Yield pieces of a long text that is spoken plainly; at_first: called when the first one is here."""
    asked = {"input": LONG_TEXT, "voice": "slt", "response_format": "pcm", "seed": 3, "speculative": False}
    async with http.stream("POST", PATHS["speech"], json=asked) as answer:
        async for piece in answer.aiter_bytes():
            if at_first is not None:
                await at_first()
                at_first = None
            yield piece


async def signalled(server: Server, http: httpx.AsyncClient, whole: bytes) -> bool:
    """Send SIGTERM in the middle of an answer; return whether the answer came whole."""

    async def stop() -> None:
        server.send_signal(signal.SIGTERM)

    return b"".join([piece async for piece in spoken(http, stop)]) == whole
