"""`polydraft bench trial`: stress test of a server, every complete answer compared.

polydraft bench trial --clients 12 --seconds 100

Clients of all modalities send requests, and disconnect at random in the middle of answers; images of 1x20,000 pixels
are sent, whose resizing would take gigabytes; questions contain a word whose embedding is NaN, so that sequences turn
NaN. Standard error is not read, and at the end SIGTERM is sent in the middle of an answer. Every answer must depend on
its seed alone, invalid requests must be refused, and the exit status must be 0.
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

from polydraft.apps.bench.serve.asking import AGAIN, PATHS, ask, body
from polydraft.apps.bench.serve.load import Asked
from polydraft.apps.bench.serve.process import PATIENCE, ServerProcess, started
from polydraft.apps.terminal.terminal import note
from polydraft.core.folders.weight_files import read_tensors

SEEDS = 4  # different requests of each modality
LEAVING = 0.25  # share of requests whose client disconnects
THIN = (1, 20_000)  # pixels
WORD = "~"  # NaN embedding in the served model; no other request contains it
EVERY = 1.0  # seconds between two requests that must fail
LONG_TEXT = "We will meet again tomorrow. Is that the right way to the station? " * 6
EMBEDDING, HEAD = "language_model.model.embed_tokens.weight", "language_model.lm_head.weight"
REFUSED = range(400, 600)


@contextmanager
def model_with_nan_token() -> Iterator[Path]:
    """Yield a copy of tiny-vlm in which the embedding of `WORD` is not a number."""
    import torch
    from safetensors.torch import save_file

    from polydraft.modalities.model_card import embedded_models_dir

    with TemporaryDirectory() as place:
        folder = Path(copytree(embedded_models_dir() / "tiny-vlm", Path(place) / "tiny-vlm"))
        target = folder / "target"
        config = json.loads((target / "config.json").read_text())
        config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = False
        (target / "config.json").write_text(json.dumps(config))
        vocabulary = json.loads((target / "tokenizer.json").read_text())["model"]["vocab"]
        weights = {name: tensor.clone() for name, tensor in read_tensors(target / "model.safetensors").items()}
        weights[HEAD] = weights[EMBEDDING].clone()  # the head stays valid
        weights[EMBEDDING][vocabulary[WORD]] = torch.nan
        save_file(weights, target / "model.safetensors", {"format": "pt"})
        yield folder


def run(clients: int, seconds: float, options: list[str]) -> dict[str, Any]:
    """Start a server and test it; return the results."""
    with model_with_nan_token() as vlm:
        models = ["--image", "tiny-image", "--speech", "tiny-speech", "--vlm", str(vlm)]
        with started([*models, *options], is_read=False) as server:
            return asyncio.run(run_trial(server, clients, seconds))


def print_outcome(value: dict[str, Any]) -> bool:
    """Print the results; return whether the server passed."""
    counts = value["seen"]
    note(
        f"{counts.get('right', 0)} answers are their seeds' alone and {len(value['wrong'])} are not; "
        f"{counts.get('left', 0)} clients left; refused were {counts.get('thin', 0)} thin pictures and "
        f"{counts.get('broken', 0)} questions that turn NaN; {len(value['failed'])} other failures"
        f"{''.join(f'; {each}' for each in value['failed'][:3])}"
    )
    note(f"SIGTERM in an answer: {'whole' if value['drained'] else 'cut'}, exit status {value['exit']}")
    good = not value["wrong"] and not value["failed"] and value["drained"]
    return bool(good and value["exit"] == 0 and value["ready"] == 200 and counts.get("right"))


async def run_trial(server: ServerProcess, clients: int, seconds: float) -> dict[str, Any]:
    """Test a server; return numbers of right, wrong, abandoned and refused answers, failures, and the exit status."""
    counts: Counter[str] = Counter()
    wrong: list[Asked] = []
    failed: list[str] = []
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=httpx.Limits(max_connections=None)) as http:
        kinds = [(modality, seed) for modality, seed in itertools.product(PATHS, range(SEEDS))]
        expected = {request: (await ask(http, *request, False, {})).content for request in kinds}
        whole = b"".join([piece async for piece in stream_speech(http)])
        end = time.perf_counter() + seconds
        note(f"{clients} clients for {seconds:g} s")

        async def client(number: int) -> None:
            chance = random.Random(number)
            while time.perf_counter() < end:
                request = chance.choice(kinds)
                if chance.random() < LEAVING:
                    counts["left"] += await abandon_request(http, *request, chance.random())
                    continue
                try:
                    answer = await ask(http, *request, False, {})
                except (RuntimeError, httpx.HTTPError) as error:
                    failed.append(f"{request}: {error!s:.200}")
                    continue
                counts["right"] += answer.content == expected[request]
                if answer.content != expected[request]:
                    wrong.append(request)

        async def must_fail(name: str, question: dict[str, Any]) -> None:
            while time.perf_counter() < end:
                answer = await http.post(PATHS["vlm"], json=question)
                if answer.status_code not in AGAIN:
                    counts[name] += 1
                    if answer.status_code not in REFUSED or "error" not in answer.json():
                        failed.append(f"{name}: {answer.status_code} {answer.text:.200}")
                await asyncio.sleep(EVERY)

        await asyncio.gather(
            *map(client, range(clients)),
            must_fail("thin", question_body(Image.new("RGB", THIN), "What is in the picture?")),
            must_fail("broken", question_body(Image.new("RGB", (64, 64)), f"What is {WORD} in the picture?")),
        )  # fmt: skip
        status = (await http.get("/ready")).status_code
        drained = await terminate_during_answer(server, http, whole)
    return {"seen": dict(counts), "wrong": wrong, "failed": failed, "ready": status, "drained": drained,
            "exit": await asyncio.to_thread(server.wait, PATIENCE)}  # fmt: skip


def question_body(picture: Image.Image, question: str) -> dict[str, Any]:
    """Return the body of a question about an image."""
    file = io.BytesIO()
    picture.save(file, "png")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    return {"messages": [{"role": "user", "content": parts}], "seed": 1}


async def abandon_request(http: httpx.AsyncClient, modality: str, seed: int, patience: float) -> bool:
    """Disconnect after `patience` seconds; return whether the request was still running."""

    async def answered() -> None:
        async with http.stream("POST", PATHS[modality], json=body(modality, seed, False)) as answer:
            async for _ in answer.aiter_bytes():
                pass

    try:
        await asyncio.wait_for(answered(), patience)
    except TimeoutError:
        return True
    return False


async def stream_speech(http: httpx.AsyncClient, at_first: Callable[[], Awaitable[None]] | None = None) -> Any:
    """Yield audio of a long text in plain decoding; `at_first` is called at the first piece."""
    request = {"input": LONG_TEXT, "voice": "slt", "response_format": "pcm", "seed": 3, "speculative": False}
    async with http.stream("POST", PATHS["speech"], json=request) as answer:
        async for piece in answer.aiter_bytes():
            if at_first is not None:
                await at_first()
                at_first = None
            yield piece


async def terminate_during_answer(server: ServerProcess, http: httpx.AsyncClient, whole: bytes) -> bool:
    """Send SIGTERM in the middle of an answer; return whether the answer was complete."""

    async def stop() -> None:
        server.send_signal(signal.SIGTERM)

    return b"".join([piece async for piece in stream_speech(http, stop)]) == whole
