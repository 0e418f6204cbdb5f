"""Engine that serves many requests at once: submit, watch, wait, cancel.

    engine = ServerEngine(Limits(rows=8, queue=32))
    await engine.start([ModelChoice("tiny-image"), ModelChoice("tiny-speech"), ModelChoice("tiny-vlm")])
    engine.models()                                # [Served(name, modality, card, methods, voices, …)]

    handle = engine.submit("tiny-image", "image", {"prompt": "a cat", "seed": 3, "partial_images": 8})
    async for progress in handle:                  # ImageProgress, SpeechProgress, …: at most one per pass
        ...
    result = await handle.result()                 # ImageResult, SpeechResult, …, as generate_* return them
    handle.cancel()                                # at any time; its rows are free before the next pass
    async with engine.submit(...) as handle: ...   # leaving the block cancels a request that has not ended

    await engine.drain(seconds=30)                 # accept nothing new; accepted requests finish, or fail if late
    await engine.stop()

`arguments` are those of `pipe.run`, which are those of `generate_image`, `generate_speech`, `chat` and `transcribe`
without model, device, dtype and on_step; for images also `partial_images`, the number of previews, at equal shares of
the tokens. `audio` of a transcription may be an `UploadedSound`, which is read on a thread beside the compute thread.
`model=None` is the first model of the modality. `submit` returns at once and raises TooBusy, Draining, UnknownModel or
InvalidArgument; every other error is raised by the handle, as a PolydraftError with one sentence for the user.

Progress events (all frozen dataclasses, tensors on the CPU and not shared):

- `ImageProgress`: tokens_done, tokens_total, passes, `tokens` `[n, T]` (-1: not yet), `committed_at` `[n, T]` (pass,
  from 1; 0: none; reshape by `served.pipe.grid` to colour runs), `images` (PIL images, empty unless a preview is due).
- `SpeechProgress`: `audio` float32 that continues without a seam, sample_rate, sentence, codes, tokens_done, passes.
- `ChatProgress`: `text` (added by this pass, may be empty), `pieces`, tokens_done, tokens_total, passes.
- `TranscriptionProgress`: `segments` that the pass finished, `partial` text of the window at work, seconds_done,
  seconds_total, passes, tokens_done. Windows of a recording become prompts one after the other.

A handle also has state ("waiting", "running", "done", "failed", "cancelled"), prompt_tokens, accepted_at, first_at,
ended_at, and after its end `stats`. Handles belong to the event loop in which they were made. The same seed gives the
same answer as a lone request, whatever else is running; `worker.py` describes what is batched together. All work with
tensors is on one thread: `await engine.compute(function, …)` runs a function there, between passes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from polydraft.apps.server.engine.handle import RequestHandle
from polydraft.apps.server.engine.meter import EngineMetrics
from polydraft.apps.server.engine.worker import EngineWorker
from polydraft.apps.server.errors import Cancelled, DeadlinePassed, Draining, Loading, TooBusy
from polydraft.apps.server.limits import Admission, decoded_pixels
from polydraft.apps.server.models import ModelChoice, Served, check, read, warm_up
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.errors import InvalidArgument, UnknownModel
from polydraft.core.stats import DecodeStats

log: logging.Logger = logging.getLogger("polydraft.server")
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """Limits of an engine: rows per batch, queued prompts per model, deadline in seconds (waiting included), and the
    load from which drafting is disabled (`draft_rows`, see `EngineWorker`)."""

    rows: int = 8
    queue: int = 32
    deadline: float = 300.0
    draft_rows: int | None = None


class ServerEngine:
    """Loaded models and the requests for them.

    Args:
        limits: rows, queue length and deadline.
        meter: counters for logs and `/metrics`.
        aliases: other names of served models.
    """

    def __init__(
        self, limits: Limits = Limits(), meter: EngineMetrics | None = None, aliases: Mapping[str, str] | None = None
    ) -> None:
        self.limits: Limits = limits
        self.meter: EngineMetrics = meter or EngineMetrics()
        self.aliases: dict[str, str] = dict(aliases or {})
        self.admission: Admission = Admission(limits.rows, limits.queue)
        self.worker: EngineWorker = EngineWorker(limits.rows, limits.draft_rows, self._left)
        self.served: dict[str, Served] = {}
        self.handles: set[RequestHandle] = set()
        self.started: bool
        self.ready: bool
        self.draining: bool
        self.started = self.ready = self.draining = False
        self.count: int = 0

    async def start(
        self, choices: Sequence[ModelChoice], publish: Callable[[str], None] = lambda line: None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        """Check all models, then load and warm up each, one after another; the engine is ready if none fails.

        Args:
            choices: models to serve.
            publish: receives a line when a model is ready.
            threads: number of torch threads; None keeps torch's default.
        """
        self.worker.compute.start()
        self.started = True
        if threads is not None:
            await self.compute(torch.set_num_threads, threads)
        for choice in choices:  # so that a mistake in the last one costs no loading of the others
            await self.compute(check, choice)
        for choice in choices:
            begun = time.monotonic()
            served = await self.compute(read, choice)
            if served.name in self.served:
                raise InvalidArgument(f"model {served.name!r} is given twice; leave one out.")
            self.served[served.name] = served
            await self.compute(warm_up, served)
            publish(f"{served.name} is ready after {time.monotonic() - begun:.1f} s")
        self.check_aliases()
        self.ready = True

    def check_aliases(self) -> None:
        """Raise InvalidArgument for an alias of a model that is not served, or one that equals a model's name."""
        for alias, name in self.aliases.items():
            if alias in self.served:
                raise InvalidArgument(f"alias {alias!r} is a model's own name; choose another.")
            if not any(served.answers_to(name) for served in self.models()):
                known = ", ".join(self.served)
                raise InvalidArgument(f"alias {alias!r} is of {name!r}, which is not served; served are {known}.")

    @property
    def healthy(self) -> bool:
        """Check whether the compute thread is alive."""
        return self.worker.compute.alive

    def models(self) -> list[Served]:
        return list(self.served.values())

    def model(self, name: str | None, modality: str | None = None) -> Served:
        """Return a model by name, or the first of a modality.

        Raises:
            UnknownModel: no such model is served.
            Loading: not all models are loaded yet.
        """
        if not self.ready:
            raise Loading("the models are still being loaded; ask again when /ready says ok.")
        fitting = [served for served in self.models() if modality in (None, served.modality)]
        meant = None if name is None else self.aliases.get(name, name)
        for served in fitting:
            if meant is None or served.answers_to(meant):
                return served
        known = [served.name for served in fitting]
        what = f" for {modality}" if modality else ""
        if name is None:
            raise UnknownModel(f"no model{what} is served here; start the server with one.")
        meant = did_you_mean(name, known)
        raise UnknownModel(
            f"model {name!r:.80} is not served here{what}{meant}; served are {', '.join(known) or 'none'}."
        )

    def submit(
        self, model: str | None, modality: str, arguments: dict[str, Any], *, wants_progress: bool = True,
        deadline: float | None = None,
    ) -> RequestHandle:  # fmt: skip
        """Accept a request and return its handle.

        Args:
            model: name of a served model; None is the first of the modality.
            modality: "image", "speech", "vlm" or "transcription".
            arguments: arguments of the pipeline's `run`.
            wants_progress: whether the handle will be iterated.
            deadline: seconds until the request fails; None is the engine's limit.

        Raises:
            TooBusy: the queue is full.
            Draining: the engine accepts nothing new.
            UnknownModel: no such model is served.
            InvalidArgument: the number of prompts is invalid.
        """
        if self.draining:
            raise Draining("the server is about to stop; ask another one, or later.")
        served = self.model(model, modality)
        prompts, pixels = served.prompts(arguments), decoded_pixels(arguments)
        try:
            self.admission.admit(served.name, prompts, pixels)
        except TooBusy:
            self.meter.rejected(served.name)
            raise
        self.count += 1
        handle = RequestHandle(self.count, served.name, modality, prompts, self._ended)
        handle.pixels = pixels
        self.handles.add(handle)
        seconds = self.limits.deadline if deadline is None else deadline
        handle.expire(seconds, DeadlinePassed(f"the request took longer than {seconds:g} s; ask for less, or later."))
        self.worker.begin(served.pipe, handle, arguments, wants_progress)
        return handle

    async def compute(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run a function on the compute thread and return its result."""
        return await asyncio.wrap_future(self.worker.compute.call(function, *arguments, **options))

    async def drain(self, seconds: float) -> bool:
        """Accept nothing new and wait for accepted requests; return whether all of them finished in time."""
        self.draining = True
        waiting = [handle.outcome for handle in self.handles]
        if not waiting:
            return True
        _, late = await asyncio.wait(waiting, timeout=seconds)
        for handle in list(self.handles):
            handle.fail(Cancelled("the server stopped before the request was finished; ask another one."))
        return not late

    async def stop(self, seconds: float = 30.0) -> None:
        """Cancel the remaining requests and end the compute thread, waiting at most `seconds` for it."""
        await self.drain(0)
        self.worker.stop()
        if self.healthy:
            await asyncio.to_thread(self.worker.compute.thread.join, seconds)

    def _ended(self, handle: RequestHandle) -> None:
        """Record that a request has an outcome."""
        self.handles.discard(handle)
        assert handle.ended_at is not None
        done = handle.state == "done"
        took = handle.ended_at - handle.accepted_at if done else None
        self.admission.release(handle.model, handle.prompts, took, handle.pixels)
        self.meter.ended(handle)
        if handle.state == "cancelled":
            self.worker.compute.wake()

    def _left(self, handle: RequestHandle, stats: DecodeStats) -> None:
        """Record that the compute thread has finished a request."""
        handle.stats = stats
        handle.post(self.meter.computed, handle.model, stats)


__all__ = ["ServerEngine", "Limits", "ModelChoice", "Served", "RequestHandle"]
