"""Time contenders in turns, in one process: whatever slows the machine for a while slows all of them.

rounds = take_turns([Contender("ar", draw_plainly), Contender("jacobi", draw)], repeats=3)
speedup(rounds["ar"], rounds["jacobi"])
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from polydraft.core.stats import DecodeStats

WARM_UPS = 1  # rounds before those that count
Item = TypeVar("Item")


@dataclass(frozen=True)
class Run:
    """One turn: decode seconds, and how many tokens (or calls) they made. Peers have no statistics."""

    seconds: float
    tokens: int
    outputs: list[Tensor] = field(default_factory=list, repr=False)
    stats: DecodeStats | None = None
    passes: int = 0

    @property
    def pace(self) -> float:
        """Return seconds per token."""
        return self.seconds / max(1, self.tokens)

    @staticmethod
    def sum(runs: Sequence[Run]) -> Run:
        """Return the run that consists of several, one after the other."""
        stats = [run.stats for run in runs if run.stats is not None]
        return Run(
            sum(run.seconds for run in runs), sum(run.tokens for run in runs),
            [output for run in runs for output in run.outputs], DecodeStats.sum_runs(stats) if stats else None,
            sum(run.passes for run in runs),
        )  # fmt: skip


@dataclass(frozen=True)
class Contender:
    """Something that does the whole work once when called."""

    name: str
    work: Callable[[], Run]


@dataclass(frozen=True)
class Spread:
    """A median with the lowest and highest value."""

    median: float
    low: float
    high: float

    @staticmethod
    def from_samples(values: Iterable[float]) -> Spread:
        ordered = sorted(values)
        return Spread(statistics.median(ordered), ordered[0], ordered[-1])


def take_turns(
    contenders: list[Contender], repeats: int, tell: Callable[[str], None] = lambda name: None
) -> dict[str, list[Run]]:
    """Run every contender once to warm up, then in `repeats` rounds in which another one begins each time."""
    runs: dict[str, list[Run]] = {contender.name: [] for contender in contenders}
    for turn in range(-WARM_UPS, repeats):
        for contender in rotated(contenders, max(turn, 0)):
            tell(contender.name)
            run = contender.work()
            if turn >= 0:
                runs[contender.name].append(run)
    return runs


def rotated(items: Sequence[Item], first: int) -> Iterator[Item]:
    """Yield all items, from the one at `first` on, round and round."""
    for place in range(len(items)):
        yield items[(first + place) % len(items)]


def timed(work: Callable[[], object], calls: int = 1) -> Run:
    """Time `calls` of `work`; the run's pace is seconds per call."""
    settle()
    begun = time.perf_counter()
    for _ in range(calls):
        work()
    settle()
    return Run(time.perf_counter() - begun, calls)


def settle() -> None:
    """Wait for what an accelerator has been asked for."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def pace(runs: list[Run]) -> Spread:
    """Return seconds per token, or per call."""
    return Spread.from_samples(run.pace for run in runs)


def seconds(runs: list[Run]) -> Spread:
    return Spread.from_samples(run.seconds for run in runs)


def speedup(baseline: list[Run], runs: list[Run]) -> Spread:
    """Return the speedup per token over the baseline of the same round; ending sooner does not count as faster."""
    return Spread.from_samples(slow.pace / fast.pace for slow, fast in zip(baseline, runs, strict=True))
