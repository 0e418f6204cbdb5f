"""What the compute thread does for the engine: requests become runs, runs join groups, groups take turns.

What is batched with what: requests of one model that decode with the same `Method` object share passes, i.e. the same
method with the same parameters and, for pictures, guidance on or off. Seeds, temperatures, top-k, top-p, penalties,
guidance scales, lengths, voices and pictures may differ from row to row. Everything else takes turns by time used.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from polydraft.apps.server.engine.compute import Compute
from polydraft.apps.server.engine.group import Ended, Group, Job, told
from polydraft.apps.server.engine.ticket import Ticket
from polydraft.apps.server.engine.turns import Turns
from polydraft.core.decode import Method

log = logging.getLogger("polydraft.server")
KEPT = 12  # groups that have nothing to do; methods have parameters, so there is no end of them


class Worker:
    """rows: of a group. draft_rows: from so many live rows of a model on, requests that leave the method open are
    decoded plainly, which gives the same tokens and costs less there; None: never."""

    def __init__(self, rows: int, draft_rows: int | None, ended: Ended) -> None:
        self.rows, self.draft_rows, self.ended = rows, draft_rows, ended
        self.groups: dict[int, Group] = {}  # by the identity of methods, which pipelines keep; last used last
        self.turns: Turns[int] = Turns()
        self.compute = Compute(self.work)

    def begin(self, pipe: Any, ticket: Ticket, arguments: dict[str, Any], wants_news: bool) -> None:
        """Called from the event loop."""
        self.compute.call(self._begin, pipe, ticket, arguments, wants_news)

    def _begin(self, pipe: Any, ticket: Ticket, arguments: dict[str, Any], wants_news: bool) -> None:
        if ticket.cancelled:
            return
        try:
            run = pipe.run(**self.eased(pipe, ticket.model, arguments))
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            ticket.post(ticket.fail, told(error))
            return
        self.group(run.method, pipe, ticket.model).add(Job(ticket, run, wants_news))

    def eased(self, pipe: Any, model: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments, with drafting turned off where it does not pay at the present load."""
        free = arguments.get("method") is None and arguments.get("speculative", True)
        if self.draft_rows is None or not free or pipe.default_method.guarantee != "identical":
            return arguments
        live = sum(group.live for group in self.groups.values() if group.model == model)
        return arguments | {"speculative": False} if live >= self.draft_rows else arguments

    def group(self, method: Method, pipe: Any, model: str) -> Group:
        """The group of a model's method, made when first needed; those that rest longest are forgotten."""
        if id(method) not in self.groups:
            idle = [key for key, group in self.groups.items() if not group.jobs]
            for key in idle[: max(0, len(idle) + 1 - KEPT)]:
                gone = self.groups.pop(key)
                gone.pipe.forget(gone.method)
                self.turns.forget(key)
            self.groups[id(method)] = Group(method, pipe, model, self.rows, self.ended)
        self.groups[id(method)] = self.groups.pop(id(method))
        return self.groups[id(method)]

    def work(self) -> bool:
        """One turn of the group that has used least time; whether there was one."""
        ready = [key for key, group in self.groups.items() if group.jobs]
        key = self.turns.next(ready)
        if key is None:
            return False
        begun = time.perf_counter()
        self.groups[key].turn()
        self.turns.spent(key, time.perf_counter() - begun)
        return True
