"""Work of the compute thread: requests join the batch of their method, and batches are scheduled fairly.

Requests of one model that decode with the same method, parameters included, and for images with guidance on or off,
share passes. Seeds, temperatures, top-k, top-p, penalties, guidance scales, lengths, voices and images may differ from
row to row. All other requests alternate by time used.

Uploaded sound is read on threads beside it, and the request reaches the compute thread with features.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from polydraft.apps.server.engine.compute import ComputeThread
from polydraft.apps.server.engine.group import BatchGroup, Ended, QueuedRequest, to_client_error
from polydraft.apps.server.engine.handle import RequestHandle
from polydraft.apps.server.engine.meter import ComputeUsage
from polydraft.apps.server.engine.scheduling import FairScheduler
from polydraft.apps.server.engine.uploads import READERS, UploadedSound
from polydraft.core.decode import Method

log: logging.Logger = logging.getLogger("polydraft.server")
KEPT = 12  # idle groups; methods have parameters, so their number is unbounded


class EngineWorker:
    """Worker that decodes requests in one `BatchGroup` per method.

    Args:
        rows: batch rows of a group.
        draft_rows: number of live rows of a model from which requests without an explicit method are decoded without
            drafting, which gives the same tokens and is faster at that load; None never disables drafting.
        ended: called for every request that leaves its group, with its statistics.
    """

    def __init__(self, rows: int, draft_rows: int | None, ended: Ended) -> None:
        self.rows: int = rows
        self.draft_rows: int | None = draft_rows
        self.ended: Ended = ended
        # by the identity of the target, which pipelines keep, and the method's name with its parameters; last used last
        self.groups: dict[tuple[int, str], BatchGroup] = {}
        self.usage: defaultdict[str, ComputeUsage] = defaultdict(ComputeUsage)  # by model
        self.turns: FairScheduler[tuple[int, str]] = FairScheduler()
        self.compute: ComputeThread = ComputeThread(self.work)
        self.readers: ThreadPoolExecutor = ThreadPoolExecutor(READERS, thread_name_prefix="polydraft-sound")

    def begin(self, pipe: Any, handle: RequestHandle, arguments: dict[str, Any], wants_progress: bool) -> None:
        """Queue a request for the compute thread, or first for a reader of its upload; called from the event loop."""
        if isinstance(arguments.get("audio"), UploadedSound):
            self.readers.submit(self._read, pipe, handle, arguments, wants_progress)
        else:
            self.compute.call(self._begin, pipe, handle, arguments, wants_progress)

    def stop(self) -> None:
        """End all threads, after the calls and files that are at work."""
        self.readers.shutdown(wait=False, cancel_futures=True)
        self.compute.stop()

    def _read(self, pipe: Any, handle: RequestHandle, arguments: dict[str, Any], wants_progress: bool) -> None:
        """Read a request's upload and queue the request; on a reader's thread."""
        try:
            recording = arguments["audio"].read(pipe.open_buffer, lambda: handle.cancelled)
        except Exception as error:  # noqa: BLE001 - the client gets it
            handle.post(handle.fail, to_client_error(error))
            return
        self.compute.call(self._begin, pipe, handle, arguments | {"audio": recording}, wants_progress)

    def _begin(self, pipe: Any, handle: RequestHandle, arguments: dict[str, Any], wants_progress: bool) -> None:
        if handle.cancelled:
            close_features(arguments)
            return
        started_at = time.perf_counter()
        try:
            run = pipe.run(**self.maybe_disable_drafting(pipe, handle.model, arguments))
        except Exception as error:  # noqa: BLE001 - the client gets it
            close_features(arguments)
            handle.post(handle.fail, to_client_error(error))
            return
        self.usage[handle.model].join_seconds += time.perf_counter() - started_at
        self.group(run.method, pipe, handle.model).add(QueuedRequest(handle, run, wants_progress))

    def maybe_disable_drafting(self, pipe: Any, model: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments, with drafting turned off if it does not pay at the current load."""
        free = arguments.get("method") is None and arguments.get("speculative", True)
        if self.draft_rows is None or not free or pipe.default_method.guarantee != "identical":
            return arguments
        live = sum(group.live for group in self.groups.values() if group.model == model)
        return arguments | {"speculative": False} if live >= self.draft_rows else arguments

    def group(self, method: Method, pipe: Any, model: str) -> BatchGroup:
        """Return the batch group of a model's method, created when first needed; the longest idle ones are dropped.

        A pipeline builds a method again when pass times were measured again. Requests then join those that are running,
        since two batches of one method would share no passes; the new method starts once the group is idle.
        """
        key = id(method.target), method.name
        group = self.groups.pop(key, None)
        if group is None or (group.method is not method and not group.jobs):
            idle = [key for key, other in self.groups.items() if not other.jobs]
            for other in idle[: max(0, len(idle) + 1 - KEPT)]:
                gone = self.groups.pop(other)
                gone.pipe.evict_method(gone.method)
                self.turns.forget(other)
            group = BatchGroup(method, pipe, model, self.rows, self.ended, self.usage[model])
        self.groups[key] = group
        return group

    def work(self) -> bool:
        """Run one step of the group that has used least time; return False if none is ready."""
        ready = [key for key, group in self.groups.items() if group.jobs]
        key = self.turns.next(ready)
        if key is None:
            return False
        begun = time.perf_counter()
        self.groups[key].turn()
        self.turns.spent(key, time.perf_counter() - begun)
        return True


def close_features(arguments: dict[str, Any]) -> None:
    """Give back the temporary file of a recording's features, where there are any."""
    features: Any = arguments.get("audio")
    if hasattr(features, "close"):
        features.close()
