"""Counters of the engine for logs, the page and `/metrics`; used on the event loop only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from polydraft.apps.server.engine.handle import RequestHandle
from polydraft.apps.server.errors import (
    Cancelled,
    ComputeFailed,
    DeadlinePassed,
    Draining,
    Loading,
    ReplicaLost,
    TooBusy,
)
from polydraft.core.errors import OutOfMemory, PolydraftError, SystemRefusal, WeightsError
from polydraft.core.stats import DecodeStats

OUTCOMES: Sequence[tuple[type[BaseException], str]] = (  # the first that fits
    (Cancelled, "cancelled"), (DeadlinePassed, "expired"), (TooBusy, "rejected"), (Draining, "rejected"),
    (Loading, "rejected"), (ComputeFailed, "failed"), (ReplicaLost, "failed"), (WeightsError, "failed"),
    (OutOfMemory, "failed"), (SystemRefusal, "failed"),
    (PolydraftError, "refused"),
)  # fmt: skip


def outcome(error: BaseException | None) -> str:
    """Return how a request ended.

    "done"; "cancelled" by the client; "expired" at its deadline; "rejected" for lack of room; "refused" as invalid; or
    "failed", which is an error of the server.
    """
    if error is None:
        return "done"
    return next((name for kind, name in OUTCOMES if isinstance(error, kind)), "failed")


@dataclass
class ComputeUsage:
    """Use of the compute thread by one model; that thread alone writes it, and numbers are read at any time.

    With the passes counted a row at a time, `steps` gives the mean rows of a pass, and the seconds say what a pass and
    a request cost: what `polydraft bench plan` plans with.
    """

    steps: int = 0  # passes of the target over all rows of a batch
    join_seconds: float = 0.0  # for prompts that are encoded and prefilled
    step_seconds: float = 0.0  # for passes, drafting and verification included
    publish_seconds: float = 0.0  # for progress and results, such as images and sound made of tokens


@dataclass
class EngineMetrics:
    """Counters per model: outcomes of requests, tokens, passes, drafted and accepted nodes.

    accepted_at counts by model and depth, from 1. Tokens are passes × τ, and accepted nodes never exceed drafted ones.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    rejections: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    prompt_tokens: Counter[str] = field(default_factory=Counter)
    passes: Counter[str] = field(default_factory=Counter)
    drafts: Counter[str] = field(default_factory=Counter)
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    accepted_at: Counter[tuple[str, int]] = field(default_factory=Counter)

    def rejected(self, model: str) -> None:
        """Count a request that was refused because the queue was full."""
        self.rejections[model] += 1

    def ended(self, handle: RequestHandle) -> None:
        """Count a request that has an outcome."""
        self.outcomes[handle.model, outcome(handle.error)] += 1
        self.prompt_tokens[handle.model] += handle.prompt_tokens

    def computed(self, model: str, stats: DecodeStats) -> None:
        """Count the computation for a request, whatever its outcome."""
        self.tokens[model] += stats.tokens
        self.passes[model] += stats.target_passes
        self.drafts[model] += stats.target_passes if stats.drafted else 0
        self.drafted[model] += stats.drafted
        self.accepted[model] += stats.accepted
        for depth, count in stats.accepted_at.items():
            self.accepted_at[model, depth] += count
