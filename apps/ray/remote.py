"""An engine whose work is done elsewhere: the interface of `apps/server/engine/engine.py`, so routes cannot tell.

    engine = RemoteEngine(handle, Limits(rows=8, queue=32), meter, replicas=4)    # handle: of the replicas, from Serve
    await engine.attach()                            # until a replica has said what is served
    ticket = engine.submit("tiny-speech", "speech", {"text": "Good day."})

Admission is counted here, over all replicas; besides, Serve refuses what finds no replica and no place in its queue.
Both are TooBusy. A replica that dies takes its running requests with it: they fail as ReplicaLost, and whoever asks
again with the same seed gets the same answer from another one. Of cancelled requests nobody tells what was computed, so
it is not in the numbers of this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from polydraft.apps.ray import wire
from polydraft.apps.server.engine.engine import Engine, Limits
from polydraft.apps.server.engine.meter import Meter
from polydraft.apps.server.engine.ticket import Ticket
from polydraft.apps.server.errors import ComputeFailed, ReplicaLost, TooBusy
from polydraft.apps.server.limits import Admission
from polydraft.apps.server.models import ModelChoice, Served

log = logging.getLogger("polydraft.ray")
T = TypeVar("T")
PATIENCE = 1.0  # seconds between questions to replicas that do not answer yet


@dataclass(frozen=True)
class Family:
    """What routes ask of a speech model: why it has no sound, if it has none."""

    silent: str


@dataclass(frozen=True)
class FarPipe:
    """What routes ask of a pipeline."""

    sample_rate: int
    family: Family


@dataclass(frozen=True)
class FarModel(Served):
    """What a replica said of a model."""

    said: dict[str, Any] = None  # type: ignore[assignment]

    @property
    def card(self) -> Any:
        raise NotImplementedError("the model is in another process; only what routes need is known here")

    @property
    def modality(self) -> str:
        return self.said["modality"]

    @property
    def summary(self) -> str:
        return self.said["summary"]

    @property
    def methods(self) -> list[str]:
        return self.said["methods"]

    @property
    def default_method(self) -> str:
        return self.said["default_method"]

    @property
    def voices(self) -> list[str]:
        return self.said["voices"]

    @property
    def size(self) -> str:
        return self.said["size"]


def far_model(said: dict[str, Any]) -> FarModel:
    pipe = FarPipe(said["sample_rate"], Family(said["silent"]))
    return FarModel(said["name"], pipe, said["created"], said["repository"], said)


class RemoteEngine(Engine):
    """replicas: how many there may be; every one decodes `limits.rows` prompts of a model together."""

    def __init__(
        self, handle: Any, limits: Limits, meter: Meter | None = None, replicas: int = 1,
        aliases: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(limits, meter, aliases)
        self.admission = Admission(limits.rows * replicas, limits.queue)
        self.worker = Dispatch(handle, self)  # type: ignore[assignment]

    async def attach(self) -> None:
        """Ask until a replica has said what is served."""
        self.started = True
        handle = self.worker.handle  # type: ignore[attr-defined]
        while not self.ready:
            try:
                self.served = {said["name"]: far_model(said) for said in await handle.describe.remote()}
                self.ready = True
            except Exception as error:  # noqa: BLE001 - replicas come and go; whoever asks /ready is told
                log.warning("no replica answers yet: %s", type(error).__name__)
                await asyncio.sleep(PATIENCE)

    async def start(
        self, choices: Sequence[ModelChoice], told: Callable[[str], None] = lambda line: None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        raise NotImplementedError("models are loaded by the replicas; use attach()")

    async def compute(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        raise NotImplementedError("there is nothing to compute with here; replicas do that")

    async def stop(self, seconds: float = 0.0) -> None:
        """Drop whatever is left; the replicas end by themselves."""
        await self.drain(0)

    def _ended(self, ticket: Ticket) -> None:
        super()._ended(ticket)
        self.worker.left(ticket)  # type: ignore[attr-defined]


class Dispatch:
    """Stands where an engine has its worker: sends requests to replicas and hands on what they tell."""

    def __init__(self, handle: Any, engine: RemoteEngine) -> None:
        self.handle, self.engine = handle, engine
        self.compute = NoCompute()
        self.tasks: dict[Ticket, asyncio.Task[None]] = {}

    def begin(self, pipe: Any, ticket: Ticket, arguments: dict[str, Any], wants_news: bool) -> None:
        seconds = self.engine.limits.deadline
        call = {"model": ticket.model, "modality": ticket.modality, "news": wants_news, "deadline": seconds}
        self.tasks[ticket] = asyncio.ensure_future(self.follow(ticket, call, arguments))

    def left(self, ticket: Ticket) -> None:
        """Whoever asked has gone, or has the answer."""
        task = self.tasks.pop(ticket, None)
        if task is not None and ticket.state != "done":
            task.cancel()

    async def follow(self, ticket: Ticket, call: dict[str, Any], arguments: dict[str, Any]) -> None:
        """One request from its first message to its last."""
        receiver = wire.Receiver()
        try:
            call["arguments"] = await asyncio.to_thread(wire.pack, arguments)
            stream = self.handle.options(stream=True).answer.remote(call)
            try:
                async for messages in stream:
                    for message in messages:
                        self.take(ticket, receiver, *message)
            except asyncio.CancelledError:
                stream.cancel()
                raise
            ticket.fail(ReplicaLost("the answer broke off; ask again."))  # nothing happens where it has ended
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            ticket.fail(self.meant(ticket, error))

    def take(self, ticket: Ticket, receiver: wire.Receiver, kind: str, *content: Any) -> None:
        """A message about a ticket."""
        if kind == "accepted":
            if ticket.state == "waiting":
                ticket.state = "running"
        elif kind == "began":
            ticket.method, ticket.prompt_tokens = content
        elif kind == "news":
            ticket.tell(receiver.unpack(content[0]))
        elif kind == "stats":
            ticket.stats = wire.unpack(content[0])
            if ticket.stats is not None:
                self.engine.meter.computed(ticket.model, ticket.stats)
        elif kind == "ended":
            ticket.finish(wire.unpack(content[0]))
        elif kind == "failed":
            ticket.fail(wire.error_of(*content))

    def meant(self, ticket: Ticket, error: Exception) -> Exception:
        """What Ray's errors are to whoever asked."""
        from ray.exceptions import RayActorError, RayError, TaskCancelledError
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        if isinstance(error, BackPressureError):
            self.engine.meter.rejected(ticket.model)
            wait = self.engine.admission.retry_after(ticket.model)
            return TooBusy("all replicas are busy and the queue is full; try again in a moment.", wait)
        lost = (RayActorError, TaskCancelledError, DeploymentUnavailableError)
        log.warning("a request was lost: %s", type(error).__name__)
        if isinstance(error, lost) or (isinstance(error, RayError) and "Actor" in type(error).__name__):
            return ReplicaLost("the replica that worked on the request has died; ask again.")
        log.error("unexpected: %s", type(error).__name__, exc_info=error)
        return ComputeFailed("a replica failed unexpectedly; try again, and look at its log if it stays so.")


class NoCompute:
    """Stands where a worker has its thread."""

    alive = True

    def wake(self) -> None:
        """There is nothing asleep here."""
