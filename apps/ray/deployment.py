"""A replica: one process with one engine, whose models are loaded and whose work with tensors is on one thread.

The front asks it for `describe()`, what it serves, and for `answer(call)`, the messages of one request as they come;
`wire.py` says what both look like. A request whose caller has gone is cancelled, and its rows are free before the next
pass. Serve asks `check_health` and replaces a replica whose compute thread has ended.
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
from polydraft.apps.server.engine.engine import Engine, Limits
from polydraft.apps.server.engine.ticket import Ticket
from polydraft.apps.server.run import choices
from polydraft.apps.server.settings import Settings

log = logging.getLogger("polydraft.ray")
NEVER_FULL = 10**6  # prompts


class Replica:
    """given: settings as plain data. Its own queue never refuses: the front and Serve bound what comes here."""

    async def __init__(self, given: dict[str, Any]) -> None:  # type: ignore[misc]
        settings = Settings(**given)
        logs.configure(settings.log_level)
        limits = Limits(settings.rows, NEVER_FULL, settings.deadline, settings.draft_rows)
        self.engine = Engine(limits, aliases=settings.alias)
        threads = settings.threads or max(1, math.floor(settings.replica_cpus))
        await self.engine.start(choices(settings), log.info, threads)

    def describe(self) -> list[dict[str, Any]]:
        """What the front has to know of every model."""
        return [
            {
                "name": served.name, "created": served.created, "repository": served.repository,
                "modality": served.modality,
                "summary": served.summary, "methods": served.methods, "default_method": served.default_method,
                "voices": served.voices, "size": served.size,
                "sample_rate": served.pipe.sample_rate if served.modality == "speech" else 0,
                "silent": served.pipe.family.silent if served.modality == "speech" else "",
            }
            for served in self.engine.models()
        ]  # fmt: skip

    def counts(self) -> dict[str, Any]:
        """Which process this is, how many requests are under way, and how others ended."""
        outcomes: Counter[str] = Counter()
        for (_, outcome), count in self.engine.meter.outcomes.items():
            outcomes[outcome] += count
        return {"process": os.getpid(), "under_way": len(self.engine.tickets), "outcomes": dict(outcomes)}

    async def answer(self, call: dict[str, Any]) -> AsyncIterator[list[wire.Message]]:
        """One request. All that is due is sent at once, so a slow reader gets fewer and longer lists."""
        try:
            arguments = await asyncio.to_thread(wire.unpack, call["arguments"])
            ticket = self.engine.submit(
                call["model"], call["modality"], arguments, news=call["news"], deadline=call["deadline"]
            )
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            yield [("failed", *wire.failure(error))]
            return
        async with ticket:
            yield [("accepted",)]
            async for messages in told(ticket):
                yield messages

    def check_health(self) -> None:
        if not self.engine.healthy:
            raise RuntimeError("the compute thread has ended")


async def told(ticket: Ticket) -> AsyncIterator[list[wire.Message]]:
    """Messages about a ticket until it has ended."""
    sender, begun = wire.Sender(), False
    try:
        async for first in ticket:
            due = [first]
            while not ticket.queue.empty() and not ticket.outcome.done():  # its end stands in the queue, too
                due.append(ticket.queue.get_nowait())
            news: list[wire.Message] = await asyncio.to_thread(packed, sender, due)
            yield news if begun else [began(ticket), *news]
            begun = True
        result = await ticket.result()
        last: wire.Message = ("ended", await asyncio.to_thread(wire.pack, result))
    except Exception as error:  # noqa: BLE001 - told to whoever asked
        last = ("failed", *wire.failure(error))
    yield [began(ticket), ("stats", wire.pack(ticket.stats)), last]


def packed(sender: wire.Sender, due: list[Any]) -> list[wire.Message]:
    return [("news", sender.pack(news)) for news in due]


def began(ticket: Ticket) -> wire.Message:
    return ("began", ticket.method, ticket.prompt_tokens)
