"""Clients of all modalities for a while: every answer compared with the same seed's alone, memory, how /health does."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import asdict
from typing import Any

import httpx

from polydraft.apps.bench.serve.asking import PATHS, ask
from polydraft.apps.bench.serve.load import Asked, Quantiles, load
from polydraft.apps.bench.serve.process import ServerProcess
from polydraft.apps.terminal.terminal import note

PERIOD = 0.1  # seconds between looks at /health
SEEDS = 4  # different requests of each modality


async def mixed(
    server: ServerProcess, http: httpx.AsyncClient, clients: int, seconds: float, headers: dict[str, str]
) -> dict[str, Any]:
    """Return figures by modality, answers that differ for equal seeds, MB over time, and /health."""
    kinds = [(modality, seed) for seed in range(SEEDS) for modality in PATHS]
    alone = {}
    for asked in kinds:
        alone[asked] = (await ask(http, *asked, False, headers)).content
    note(f"{clients} clients for {seconds:g} s")
    health: list[float] = []
    memory: list[float] = []
    watching = asyncio.ensure_future(watch(server, health, memory))
    try:
        seen = await load(http, itertools.cycle(kinds), clients, False, headers, seconds)
    finally:
        watching.cancel()
    wrong: list[Asked] = [asked for asked, answer in seen.answers if answer.content != alone[asked]]
    return {
        "clients": clients, "seconds": seen.wall, "requests": len(seen.answers), "wrong": wrong,
        "modalities": {modality: seen.figures(modality) for modality in PATHS},
        "health": asdict(Quantiles.from_samples(health)), "memory": memory,
    }  # fmt: skip


async def watch(server: ServerProcess, health: list[float], memory: list[float]) -> None:
    """Look at /health and the memory until cancelled."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        while True:
            begun = time.perf_counter()
            (await http.get("/health")).raise_for_status()
            health.append(time.perf_counter() - begun)
            if (now := server.memory()) is not None:
                memory.append(now)
            await asyncio.sleep(PERIOD)
