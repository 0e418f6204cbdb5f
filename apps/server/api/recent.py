"""Outcomes of the latest requests by id, so that statistics of streamed audio can be fetched afterwards."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from polydraft.apps.server.api.schemas.common import metrics
from polydraft.apps.server.api.schemas.service import RequestInfo
from polydraft.apps.server.engine.handle import RequestHandle

KEPT = 1000


class Recent:
    """The newest requests that have ended; no prompt and no answer is kept."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept = kept
        self.records: OrderedDict[str, RequestInfo] = OrderedDict()

    def follow(self, id: str, seed: int, handle: RequestHandle) -> None:
        """Record the outcome of `handle` under a request id when it ends."""

        def ended(outcome: asyncio.Future[object]) -> None:
            self.records[id] = RequestInfo(
                id=id, model=handle.model, state=handle.state, method=handle.method, seed=seed,
                metrics=None if handle.stats is None else metrics(handle.stats),
            )  # fmt: skip
            while len(self.records) > self.kept:
                self.records.popitem(last=False)

        handle.outcome.add_done_callback(ended)
