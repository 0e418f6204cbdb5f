"""Replica: one process with one engine, whose models are loaded and whose tensor work is on one thread.

The front calls `describe()` for the served models, and `answer(call)` for the messages of one request; `wire.py`
defines both formats. A request whose caller has gone is cancelled, and its rows are free before the next pass. Serve
calls `check_health` and replaces a replica whose compute thread has ended.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from polydraft.apps.ray import wire
from polydraft.apps.server import logs
from polydraft.apps.server.engine.engine import Limits, ServerEngine
from polydraft.apps.server.engine.handle import RequestHandle
from polydraft.apps.server.run import choices
from polydraft.apps.server.settings import ServerSettings

log: logging.Logger = logging.getLogger("polydraft.ray")
NEVER_FULL = 10**6  # prompts


class Replica:
    """Replica with an engine whose queue is unbounded: the front and Serve bound the requests."""

    async def __init__(self, given: dict[str, Any]) -> None:  # type: ignore[misc]
        settings = ServerSettings(**given)
        logs.configure(settings.log_level)
        limits = Limits(settings.rows, NEVER_FULL, settings.deadline, settings.draft_rows)
        self.engine: ServerEngine = ServerEngine(limits, aliases=settings.alias)
        threads = settings.threads or max(1, math.floor(settings.replica_cpus))
        await self.engine.start(choices(settings), log.info, threads)

    def describe(self) -> list[dict[str, Any]]:
        """Return the facts about every model that the front needs."""
        return [
            {
                "name": served.name, "created": served.created, "repository": served.repository,
                "modality": served.modality,
                "summary": served.summary, "methods": served.methods, "default_method": served.default_method,
                "voices": served.voices, "size": served.size,
                "sample_rate": served.pipe.sample_rate if served.modality == "speech" else 0,
                "silent": served.pipe.family.no_audio_reason if served.modality == "speech" else "",
            }
            for served in self.engine.models()
        ]  # fmt: skip

    def counts(self) -> dict[str, Any]:
        """Return the process id, the number of running requests, and how others ended."""
        outcomes: Counter[str] = Counter()
        for (_, outcome), count in self.engine.meter.outcomes.items():
            outcomes[outcome] += count
        return {"process": os.getpid(), "under_way": len(self.engine.handles), "outcomes": dict(outcomes)}

    async def answer(self, call: dict[str, Any]) -> AsyncIterator[list[wire.Message]]:
        """Run one request; due messages are sent as one list, so a slow reader gets fewer and longer lists."""
        try:
            arguments = await asyncio.to_thread(wire.unpack, call["arguments"])
            handle = self.engine.submit(
                call["model"], call["modality"], arguments, wants_progress=call["progress"], deadline=call["deadline"]
            )
        except Exception as error:  # noqa: BLE001 - the client gets it
            yield [("failed", *wire.failure(error))]
            return
        async with handle:
            yield [("accepted",)]
            async for messages in message_batches(handle):
                yield messages

    def check_health(self) -> None:
        if not self.engine.healthy:
            raise RuntimeError("the compute thread has ended")


async def message_batches(handle: RequestHandle) -> AsyncIterator[list[wire.Message]]:
    """Yield messages about a request until it has ended."""
    sender, begun = wire.Sender(), False
    try:
        async for first in handle:
            due = [first]
            while not handle.queue.empty() and not handle.outcome.done():  # its end stands in the queue, too
                due.append(handle.queue.get_nowait())
            progress: list[wire.Message] = await asyncio.to_thread(packed, sender, due)
            yield progress if begun else [began(handle), *progress]
            begun = True
        result = await handle.result()
        last: wire.Message = ("ended", await asyncio.to_thread(wire.pack, result))
    except Exception as error:  # noqa: BLE001 - the client gets it
        last = ("failed", *wire.failure(error))
    yield [began(handle), ("stats", wire.pack(handle.stats)), last]


def packed(sender: wire.Sender, due: list[Any]) -> list[wire.Message]:
    return [("progress", sender.pack(progress)) for progress in due]


def began(handle: RequestHandle) -> wire.Message:
    return ("began", handle.method, handle.prompt_tokens)
