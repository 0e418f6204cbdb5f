"""Engine that sends requests to replicas, with the interface of `apps/server/engine/engine.py`.

    engine = RemoteEngine(deployment, Limits(rows=8, queue=32), meter, replicas=4)    # deployment: Serve's handle
    await engine.attach()                            # until a replica has described its models
    handle = engine.submit("tiny-speech", "speech", {"text": "Good day."})

Admission is counted here, over all replicas; besides, Serve refuses requests beyond its queue. Both are TooBusy. A
replica that dies takes its running requests with it: they fail as ReplicaLost, and a retry with the same seed gets the
same answer from another one. Replicas do not report the computation of cancelled requests, so it is missing in the
counters of this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from polydraft.apps.ray import wire
from polydraft.apps.server.engine.engine import Limits, ServerEngine
from polydraft.apps.server.engine.handle import RequestHandle
from polydraft.apps.server.engine.meter import EngineMetrics
from polydraft.apps.server.errors import ComputeFailed, ReplicaLost, TooBusy
from polydraft.apps.server.limits import Admission
from polydraft.apps.server.models import ModelChoice, Served

log: logging.Logger = logging.getLogger("polydraft.ray")
T = TypeVar("T")
PATIENCE = 1.0  # seconds between questions to replicas that do not answer yet


@dataclass(frozen=True)
class Family:
    """Speech family of a remote model, as far as routes need it: why it has no audio, if it has none."""

    silent: str


@dataclass(frozen=True)
class FarPipe:
    """Pipeline of a remote model, as far as routes need it."""

    sample_rate: int
    family: Family


@dataclass(frozen=True)
class FarModel(Served):
    """Model of a replica, from the facts that it sent."""

    facts: dict[str, Any] = None  # type: ignore[assignment]

    @property
    def card(self) -> Any:
        raise NotImplementedError("the model is in another process; only what routes need is known here")

    @property
    def modality(self) -> str:
        return self.facts["modality"]

    @property
    def summary(self) -> str:
        return self.facts["summary"]

    @property
    def methods(self) -> list[str]:
        return self.facts["methods"]

    @property
    def default_method(self) -> str:
        return self.facts["default_method"]

    @property
    def voices(self) -> list[str]:
        return self.facts["voices"]

    @property
    def size(self) -> str:
        return self.facts["size"]


def far_model(facts: dict[str, Any]) -> FarModel:
    pipe = FarPipe(facts["sample_rate"], Family(facts["silent"]))
    return FarModel(facts["name"], pipe, facts["created"], facts["repository"], facts)


class RemoteEngine(ServerEngine):
    """Engine that sends requests to replicas, each of which decodes `limits.rows` prompts of a model together."""

    def __init__(
        self, deployment: Any, limits: Limits, meter: EngineMetrics | None = None, replicas: int = 1,
        aliases: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(limits, meter, aliases)
        self.admission: Admission = Admission(limits.rows * replicas, limits.queue)
        self.worker: Dispatch = Dispatch(deployment, self)  # type: ignore[assignment]

    async def attach(self) -> None:
        """Wait until a replica has described its models."""
        self.started = True
        deployment = self.worker.deployment
        while not self.ready:
            try:
                self.served: dict[str, Served]
                self.served = {facts["name"]: far_model(facts) for facts in await deployment.describe.remote()}
                self.ready = True
            except Exception as error:  # noqa: BLE001 - replicas come and go; /ready reports it
                log.warning("no replica answers yet: %s", type(error).__name__)
                await asyncio.sleep(PATIENCE)

    async def start(
        self, choices: Sequence[ModelChoice], publish: Callable[[str], None] = lambda line: None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        raise NotImplementedError("models are loaded by the replicas; use attach()")

    async def compute(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        raise NotImplementedError("there is nothing to compute with here; replicas do that")

    async def stop(self, seconds: float = 0.0) -> None:
        """Drop whatever is left; the replicas end by themselves."""
        await self.drain(0)

    def _ended(self, handle: RequestHandle) -> None:
        super()._ended(handle)
        self.worker.left(handle)


class Dispatch:
    """Replacement of `EngineWorker`: sends requests to replicas and applies their messages."""

    def __init__(self, deployment: Any, engine: RemoteEngine) -> None:
        self.deployment: Any = deployment
        self.engine: RemoteEngine = engine
        self.compute: NoCompute = NoCompute()
        self.tasks: dict[RequestHandle, asyncio.Task[None]] = {}

    def begin(self, pipe: Any, handle: RequestHandle, arguments: dict[str, Any], wants_progress: bool) -> None:
        seconds = self.engine.limits.deadline
        call = {"model": handle.model, "modality": handle.modality, "progress": wants_progress, "deadline": seconds}
        self.tasks[handle] = asyncio.ensure_future(self.follow(handle, call, arguments))

    def left(self, handle: RequestHandle) -> None:
        """Cancel the call of a request that ended without a result."""
        task = self.tasks.pop(handle, None)
        if task is not None and handle.state != "done":
            task.cancel()

    async def follow(self, handle: RequestHandle, call: dict[str, Any], arguments: dict[str, Any]) -> None:
        """Follow one request from its first message to its last."""
        receiver = wire.Receiver()
        try:
            call["arguments"] = await asyncio.to_thread(wire.pack, arguments)
            stream = self.deployment.options(stream=True).answer.remote(call)
            try:
                async for messages in stream:
                    for message in messages:
                        self.take(handle, receiver, *message)
            except asyncio.CancelledError:
                stream.cancel()
                raise
            handle.fail(ReplicaLost("the answer broke off; ask again."))  # nothing happens where it has ended
        except Exception as error:  # noqa: BLE001 - the client gets it
            handle.fail(self.client_error(handle, error))

    def take(self, handle: RequestHandle, receiver: wire.Receiver, kind: str, *content: Any) -> None:
        """Apply a message to its request."""
        if kind == "accepted":
            if handle.state == "waiting":
                handle.state = "running"
        elif kind == "began":
            handle.method, handle.prompt_tokens = content
        elif kind == "progress":
            handle.publish(receiver.unpack(content[0]))
        elif kind == "stats":
            handle.stats = wire.unpack(content[0])
            if handle.stats is not None:
                self.engine.meter.computed(handle.model, handle.stats)
        elif kind == "ended":
            handle.finish(wire.unpack(content[0]))
        elif kind == "failed":
            handle.fail(wire.error_of(*content))

    def client_error(self, handle: RequestHandle, error: Exception) -> Exception:
        """Return the error that a client may see for an error of Ray."""
        from ray.exceptions import RayActorError, RayError, TaskCancelledError
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        if isinstance(error, BackPressureError):
            self.engine.meter.rejected(handle.model)
            wait = self.engine.admission.retry_after(handle.model)
            return TooBusy("all replicas are busy and the queue is full; try again in a moment.", wait)
        lost = (RayActorError, TaskCancelledError, DeploymentUnavailableError)
        log.warning("a request was lost: %s", type(error).__name__)
        if isinstance(error, lost) or (isinstance(error, RayError) and "Actor" in type(error).__name__):
            return ReplicaLost("the replica that worked on the request has died; ask again.")
        log.error("unexpected: %s", type(error).__name__, exc_info=error)
        return ComputeFailed("a replica failed unexpectedly; try again, and look at its log if it stays so.")


class NoCompute:
    """Replacement of a worker's `ComputeThread`."""

    alive = True

    def wake(self) -> None:
        """Do nothing, since no thread sleeps here."""
