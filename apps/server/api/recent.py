"""What became of the last requests, by their id: how sound that was streamed tells of its drafting."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from polydraft.apps.server.api.schemas.common import metrics
from polydraft.apps.server.api.schemas.service import RequestInfo
from polydraft.apps.server.engine.ticket import Ticket

KEPT = 1000


class Recent:
    """The newest requests that have ended; no prompt and no answer is kept."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept = kept
        self.records: OrderedDict[str, RequestInfo] = OrderedDict()

    def follow(self, id: str, seed: int, ticket: Ticket) -> None:
        """Note `ticket` under a request's id when it ends."""

        def ended(outcome: asyncio.Future[object]) -> None:
            self.records[id] = RequestInfo(
                id=id, model=ticket.model, state=ticket.state, method=ticket.method, seed=seed,
                metrics=None if ticket.stats is None else metrics(ticket.stats),
            )  # fmt: skip
            while len(self.records) > self.kept:
                self.records.popitem(last=False)

        ticket.outcome.add_done_callback(ended)
