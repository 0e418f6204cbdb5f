"""What a run cost and what drafting earned: counters and phase times, read off the steps."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch


class Stopwatch:
    """Names the phase that each stretch of time belongs to.

    waits: whether a lap ends only when an accelerator has done what it was asked for. Without it a phase is the time to
    ask, and the pass's one read waits for the rest; the sum is right either way.
    """

    def __init__(self, waits: bool = False) -> None:
        self.seconds: Counter[str] = Counter()
        self.waits = waits
        self.last = time.perf_counter()

    @property
    def decoding(self) -> float:
        """Seconds of all passes: drafting, scoring, verifying and committing."""
        return sum(self.seconds[name] for name in ("draft", "score", "verify", "rest"))

    def lap(self, phase: str) -> None:
        """Count the time since the last lap as `phase`."""
        if torch.accelerator.is_available() and (self.waits or phase == "prefill"):
            torch.accelerator.synchronize()
        now = time.perf_counter()
        self.seconds[phase] += now - self.last  # type: ignore[assignment]
        self.last = now


@dataclass
class DecodeStats:
    """Statistics of one row, or of a whole run (`sum` over rows for counts).

    tokens: committed, none of them behind the end of its row, whatever ended it; target_passes: scored passes the rows
    took part in (prefill apart); drafted and accepted: nodes; most_drafted: nodes of the largest draft.
    accepted_at: how often depth i (from 1) was accepted. Seconds are wall time of the batch the row was in; where steps
    are replayed (`core.replay`) all of a step counts as scoring.
    """

    method: str
    guarantee: str
    tokens: int = 0
    target_passes: int = 0
    drafter_passes: int = 0
    drafted: int = 0
    accepted: int = 0
    most_drafted: int = 0
    accepted_at: Counter[int] = field(default_factory=Counter)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    score_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def mean_accepted_length(self) -> float:
        """τ: mean tokens committed per target pass, the target's own token included, prefill excluded."""
        return self.tokens / self.target_passes if self.target_passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def accepted_per_position(self) -> list[float]:
        """Share of passes that accepted at least i drafted tokens, i from 1."""
        deepest = max(self.accepted_at, default=0)
        return [self.accepted_at[i] / self.target_passes for i in range(1, deepest + 1)]

    @property
    def passes_by_accepted(self) -> list[int]:
        """Passes that accepted exactly i drafted tokens, i from 0 to the size of the largest draft."""
        reached = [self.target_passes, *(self.accepted_at[i] for i in range(1, self.most_drafted + 2))]
        return [least - more for least, more in pairwise(reached)]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def rest_seconds(self) -> float:
        """Committing, bookkeeping and events."""
        return self.decode_seconds - self.draft_seconds - self.score_seconds - self.verify_seconds

    @property
    def exact(self) -> bool:
        return self.guarantee != "lossy"

    def count(self, drafted: int, accepted: int, tokens: int, drafter_passes: int) -> None:
        """One target pass of one row."""
        self.target_passes += 1
        self.drafter_passes += drafter_passes
        self.drafted += drafted
        self.most_drafted = max(self.most_drafted, drafted)
        self.accepted += accepted
        self.tokens += tokens
        if accepted:
            self.accepted_at.update(range(1, accepted + 1))

    def uncount(self, accepted: int, tokens: int, kept: int) -> None:
        """Keep only the first `kept` of the `tokens` that the last pass of one row was counted with.

        The pass itself and what it drafted stay counted: both were needed for the tokens that are kept.
        """
        kept_drafts = min(accepted, kept)
        self.tokens -= tokens - kept
        self.accepted -= accepted - kept_drafts
        self.accepted_at -= Counter(range(kept_drafts + 1, accepted + 1))

    def time(self, watch: Stopwatch) -> None:
        """Take phase times over from the batch's watch; "rest" is committing, bookkeeping and events."""
        phases = watch.seconds
        self.prefill_seconds, self.draft_seconds = phases["prefill"], phases["draft"]
        self.score_seconds, self.verify_seconds = phases["score"], phases["verify"]
        self.decode_seconds = watch.decoding

    @classmethod
    def total(cls, rows: list[DecodeStats]) -> DecodeStats:
        """Counts summed over rows of one batch; times, which the rows shared, taken once."""
        total = replace(rows[0], accepted_at=Counter())
        for name in ("tokens", "target_passes", "drafter_passes", "drafted", "accepted"):
            setattr(total, name, sum(getattr(row, name) for row in rows))
        total.most_drafted = max(row.most_drafted for row in rows)
        for row in rows:
            total.accepted_at.update(row.accepted_at)
        return total

    @classmethod
    def in_sequence(cls, runs: list[DecodeStats]) -> DecodeStats:
        """Counts and times of runs one after another."""
        total = cls.total(runs)
        for name in ("prefill_seconds", "draft_seconds", "score_seconds", "verify_seconds", "decode_seconds"):
            setattr(total, name, sum(getattr(run, name) for run in runs))
        return total

    def to_dict(self) -> dict[str, Any]:
        named = ("method", "guarantee", "exact", "tokens", "target_passes", "drafter_passes", "mean_accepted_length",
                 "acceptance_rate", "accepted_per_position", "prefill_seconds", "draft_seconds", "score_seconds",
                 "verify_seconds", "decode_seconds", "tokens_per_second")  # fmt: skip
        return {name: getattr(self, name) for name in named}
