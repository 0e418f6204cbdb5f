"""Decoding statistics: token counts, acceptance, and wall time per phase."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch


class PhaseTimer:
    """Timer that divides the wall time of a batch among phases: prefill, draft, score, verify and rest."""

    def __init__(self, synchronize: bool = False) -> None:
        """Start timing.

        Args:
            synchronize (bool): Wait for the accelerator at the end of every phase. Without it a phase is the time to
                launch its kernels, and the phase that copies results to the host includes the wait for all of them; the
                sum over phases is right either way.
        """
        self.seconds: Counter[str] = Counter()  # by phase
        self.synchronize = synchronize
        self.last: float = time.perf_counter()  # end of the last phase

    @property
    def decode_seconds(self) -> float:
        """Return the seconds of all phases but prefill."""
        return sum(self.seconds[phase] for phase in ("draft", "score", "verify", "rest"))

    def end_phase(self, phase: str) -> None:
        """Add the time since the end of the last phase to `phase` ("prefill", "draft", "score", "verify" or "rest")."""
        # always after prefill, so that decoding does not include the wait for its kernels
        if torch.accelerator.is_available() and (self.synchronize or phase == "prefill"):
            torch.accelerator.synchronize()
        now = time.perf_counter()
        self.seconds[phase] += now - self.last  # type: ignore[assignment]
        self.last = now


@dataclass
class DecodeStats:
    """Decoding statistics of one batch row, or of several (`sum_rows`, `sum_runs`).

    Seconds are wall time of the batch the row was in; where steps are replayed (`core.cuda_graphs`) all of a step
    counts as scoring.
    """

    method: str  # name of the decoding method
    guarantee: str  # of its results, such as "identical", "exact (ties apart)" or "lossy"
    tokens: int = 0  # committed tokens, without those after the stop point of the row
    target_passes: int = 0  # target passes that scored drafts, without prefill
    drafter_passes: int = 0  # forward passes of the drafter's network
    drafted: int = 0  # draft nodes, summed over passes
    accepted: int = 0  # accepted draft nodes, summed over passes
    most_drafted: int = 0  # nodes of the largest draft
    accepted_at: Counter[int] = field(default_factory=Counter)  # by depth from 1: passes that accepted a node there
    # by method, where drafters take turns: passes that each drafted for
    passes_by_drafter: Counter[str] = field(default_factory=Counter)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    score_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Return the mean tokens committed per target pass (τ), the target's own token included, prefill excluded."""
        return self.tokens / self.target_passes if self.target_passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Return the share of drafted nodes that were accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def accepted_per_position(self) -> list[float]:
        """Return the share of passes that accepted at least i drafted tokens, i from 1."""
        max_depth = max(self.accepted_at, default=0)
        return [self.accepted_at[i] / self.target_passes for i in range(1, max_depth + 1)]

    @property
    def passes_by_accepted(self) -> list[int]:
        """Return the numbers of passes that accepted exactly i drafted tokens, for i = 0 … `most_drafted`."""
        # at_least[i]: passes that accepted i tokens or more; the last entry, i = `most_drafted` + 1, is always 0
        at_least = [self.target_passes, *(self.accepted_at[i] for i in range(1, self.most_drafted + 2))]
        return [passes - passes_with_more for passes, passes_with_more in pairwise(at_least)]

    @property
    def tokens_per_second(self) -> float:
        """Return the committed tokens per second of decoding."""
        return self.tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def rest_seconds(self) -> float:
        """Return the seconds of committing, bookkeeping and events."""
        return self.decode_seconds - self.draft_seconds - self.score_seconds - self.verify_seconds

    @property
    def exact(self) -> bool:
        """Return True if the output has the target's distribution."""
        return self.guarantee != "lossy"

    def record_pass(self, drafted: int, accepted: int, tokens: int, drafter_passes: int, drafter: str = "") -> None:
        """Count one target pass of one batch row.

        Args:
            drafted (int): Nodes of the row's draft.
            accepted (int): Nodes that were accepted.
            tokens (int): Tokens that were committed, usually `accepted` and the target's own.
            drafter_passes (int): Network passes that the draft took.
            drafter (str): Who drafted, where several drafters take turns.
        """
        if drafter:
            self.passes_by_drafter[drafter] += 1
        self.target_passes += 1
        self.drafter_passes += drafter_passes
        self.drafted += drafted
        self.most_drafted = max(self.most_drafted, drafted)
        self.accepted += accepted
        self.tokens += tokens
        if accepted:  # the accepted path has one node at each depth 1 … `accepted`
            self.accepted_at.update(range(1, accepted + 1))

    def truncate_last_pass(self, accepted: int, tokens: int, kept: int) -> None:
        """Correct the counts of the last pass of one batch row, of whose tokens only the first ones are kept.

        The pass and its drafted nodes stay counted, since both were needed for the tokens that are kept.

        Args:
            accepted (int): Accepted nodes that the pass was recorded with.
            tokens (int): Committed tokens that the pass was recorded with.
            kept (int): How many of these tokens are kept.
        """
        kept_drafts = min(accepted, kept)  # committed tokens are the accepted nodes, then the target's own token
        self.tokens -= tokens - kept
        self.accepted -= accepted - kept_drafts
        self.accepted_at -= Counter(range(kept_drafts + 1, accepted + 1))

    def set_times(self, timer: PhaseTimer) -> None:
        """Copy the phase times of the batch from its timer."""
        phases = timer.seconds
        self.prefill_seconds, self.draft_seconds = phases["prefill"], phases["draft"]
        self.score_seconds, self.verify_seconds = phases["score"], phases["verify"]
        self.decode_seconds = timer.decode_seconds

    @classmethod
    def sum_rows(cls, rows: list[DecodeStats]) -> DecodeStats:
        """Return the statistics of all rows of one batch: counts are summed, and times are those of the first row.

        Times are not summed because every row carries the wall time of the whole batch.
        """
        total = replace(rows[0], accepted_at=Counter(), passes_by_drafter=Counter())
        for name in ("tokens", "target_passes", "drafter_passes", "drafted", "accepted"):
            setattr(total, name, sum(getattr(row, name) for row in rows))
        total.most_drafted = max(row.most_drafted for row in rows)
        for row in rows:
            total.accepted_at.update(row.accepted_at)
            total.passes_by_drafter.update(row.passes_by_drafter)
        return total

    @classmethod
    def sum_runs(cls, runs: list[DecodeStats]) -> DecodeStats:
        """Return the statistics of runs that followed each other in time: both counts and times are summed."""
        total = cls.sum_rows(runs)
        for name in ("prefill_seconds", "draft_seconds", "score_seconds", "verify_seconds", "decode_seconds"):
            setattr(total, name, sum(getattr(run, name) for run in runs))
        return total

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics that are reported as JSON, by name."""
        names = ("method", "guarantee", "exact", "tokens", "target_passes", "drafter_passes", "mean_accepted_length",
                 "acceptance_rate", "accepted_per_position", "prefill_seconds", "draft_seconds", "score_seconds",
                 "verify_seconds", "decode_seconds", "tokens_per_second")  # fmt: skip
        report = {name: getattr(self, name) for name in names}
        return report | ({"passes_by_drafter": dict(self.passes_by_drafter)} if self.passes_by_drafter else {})
