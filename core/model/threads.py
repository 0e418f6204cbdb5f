"""Choose the number of CPU threads of a forward pass from measurements of the passes themselves.

The threads of a pass wait for each other some 120 times, spinning. If another process takes one of the cores, a wait
can last a scheduler time slice, and a pass of 7 ms takes 300. No setting of the spinning is right for every machine and
model, so the number of threads is tuned: when passes are preempted, fewer threads are tried, and the faster number is
kept; later more threads are tried again, at growing intervals while they lose.

    tuner = ThreadTuner(thread_counts())
    with tuner.measure() as measured:
        …                                # a pass
        measured.size = rows * columns   # passes of other sizes are not compared
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # Windows counts no preemptions; the calling thread's share of time has to do
    resource = None  # type: ignore[assignment]

MIN_RUNNING_SHARE = 0.9  # of a pass that the calling thread is on a core, unless other processes take it
SLOWED = 1.2  # times the fastest pass of its kind; smaller slowdowns have other causes than preemption
SLOWER = 3  # times the fastest pass of its kind; the only sign of a host that takes cores from its guest
WINNING_RATIO = 0.95  # of the present count's pass time that another count must stay below to replace it
NUM_RECENT = 3  # passes whose median represents a count; if all are disturbed, fewer threads are tried
FIRST_WAIT, LONGEST_WAIT = 8, 128  # passes before a count that lost is tried again
MAX_KINDS = 256  # of passes that are remembered, since a server may have any number of method names
MAX_TRIES = 4  # passes of a trial if none is of a kind that was timed before
PROBE_SECONDS = 0.01
PROBE_INTERVAL = 0.25  # seconds of passes between two probes
PROBE_REGIONS = 400
PROBE_SIZE = 1 << 17  # numbers of a tensor, enough for torch to divide it among all threads


@dataclass(frozen=True)
class Usage:
    """Wall and processor time of a piece of work."""

    seconds: float  # wall time
    running: float  # share of it that the calling thread was on a core, spinning included
    preemptions: int  # how often any thread of the process lost its core to another one

    @property
    def disturbed(self) -> bool:
        """Return whether other processes took cores meanwhile."""
        return self.running < MIN_RUNNING_SHARE or self.preemptions > 0


def start_usage() -> Callable[[], Usage]:
    """Start a measurement and return the function that ends it."""
    wall, running, preempted = time.perf_counter(), time.thread_time(), preemptions()

    def end() -> Usage:
        seconds = time.perf_counter() - wall
        return Usage(seconds, (time.thread_time() - running) / max(seconds, 1e-9), preemptions() - preempted)

    return end


def preemptions() -> int:
    """Return how often threads of this process have been preempted so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if resource else 0


@dataclass
class PassMeasurement:
    """Measurement of one forward pass."""

    method: str = ""  # passes are compared with others of the same method
    size: int = 0  # scored positions of all sequences; passes are compared with others of about the same size
    threads: int = 0  # that compute it; 0 if threads are not tuned
    usage: Usage | None = None  # set when the pass is over

    def compute_seconds(self, seconds: float) -> float:
        """Return the part of `seconds` that was spent computing, which is known for passes of one thread only."""
        return seconds * min(1.0, self.usage.running) if self.usage and self.threads == 1 else seconds


class ThreadTuner:
    """Number of threads of a method's passes, tuned while they run.

    Args:
        counts (Sequence[int]): Numbers of threads to choose from, descending. Empty: threads are not changed.
        level (int): Index of the count to begin with.
        quiet (Callable[[int], bool]): Returns within milliseconds whether that many cores are free now.
    """

    def __init__(self, counts: Sequence[int] = (), level: int = 0, quiet: Callable[[int], bool] | None = None) -> None:
        self.counts, self.level, self.quiet = tuple(counts), level, quiet or has_free_cores
        self.trial: int | None = None  # index of the count that is being tried
        self.tries = 0
        self.times: dict[tuple[int, Hashable], deque[float]] = {}  # seconds of recent passes, by level and kind
        self.fastest: dict[tuple[int, Hashable], float] = {}  # seconds, by level and kind
        # Whether recent passes were disturbed. It starts as if some had been, so that a slow first pass starts a trial.
        self.disturbed: deque[bool] = deque([True] * (NUM_RECENT - 1), maxlen=NUM_RECENT)
        self.wait = {+1: 0, -1: FIRST_WAIT}  # passes before fewer (+1) and more (-1) threads may be tried
        self.patience = {+1: FIRST_WAIT, -1: FIRST_WAIT}
        self.settled = 0  # passes since the highest count was chosen

    @property
    def count(self) -> int:
        """Return the number of threads of the next pass."""
        return self.counts[self.level if self.trial is None else self.trial]

    @contextmanager
    def measure(self) -> Iterator[PassMeasurement]:
        """Run one pass with the chosen number of threads and tune it by the time that the pass takes."""
        if not self.counts:
            yield PassMeasurement()
            return
        measured = PassMeasurement(threads=self.count)
        with limit_threads(self.count):
            end = start_usage()
            yield measured
            measured.usage = end()
        if len(self.counts) > 1:
            self.observe((measured.method, size_class(measured.size)), measured.usage)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Run anything other than a pass with the chosen number of threads."""
        if not self.counts:
            yield
            return
        with limit_threads(self.count):
            yield

    def observe(self, kind: Hashable, usage: Usage) -> None:
        """Record a pass that ran with the present count.

        Args:
            kind (Hashable): Passes of one kind are comparable.
            usage (Usage): Time of the pass.
        """
        level = self.level if self.trial is None else self.trial
        if len(self.fastest) > MAX_KINDS:
            self.fastest.clear()
            self.times.clear()
        self.times.setdefault((level, kind), deque(maxlen=NUM_RECENT)).append(usage.seconds)
        if self.trial is not None:
            self.judge_trial(kind)
        else:
            fastest = self.fastest[level, kind] = min(usage.seconds, self.fastest.get((level, kind), usage.seconds))
            self.consider_trial(usage, usage.seconds / fastest)

    def consider_trial(self, usage: Usage, slowdown: float) -> None:
        """Start a trial of fewer threads if passes are disturbed, and of more if they no longer are.

        Args:
            usage (Usage): Time of the last pass.
            slowdown (float): Its time relative to the fastest pass of its kind.
        """
        slowed = usage.preemptions > 0 and slowdown > SLOWED  # preemption by kernel threads costs no time
        disturbed = usage.running < MIN_RUNNING_SHARE or slowed or slowdown > SLOWER
        self.disturbed.append(disturbed)
        self.wait = {step: left - 1 for step, left in self.wait.items()}
        self.settled = self.settled + 1 if self.level == 0 else 0
        fewer = all(self.disturbed) and self.level + 1 < len(self.counts)
        if fewer and (self.wait[+1] <= 0 or slowdown > SLOWER):
            self.begin_trial(self.level + 1)
        elif not disturbed and self.level > 0 and self.wait[-1] <= 0:
            if self.quiet(self.counts[self.level - 1]):
                self.begin_trial(self.level - 1)
            else:
                self.wait[-1] = 1 + int(PROBE_INTERVAL / usage.seconds)

    def begin_trial(self, level: int) -> None:
        """Run the next passes with the count of `level`, and forget its earlier times."""
        self.trial, self.tries = level, 0
        self.times = {key: times for key, times in self.times.items() if key[0] != level}

    def judge_trial(self, kind: Hashable) -> None:
        """End the trial; adopt its count if its last pass was faster than recent ones of the present count."""
        assert self.trial is not None
        self.tries += 1
        present = self.times.get((self.level, kind))
        if present is None and self.tries < MAX_TRIES:
            return
        step = self.trial - self.level
        wins = present is not None and self.times[self.trial, kind][-1] < WINNING_RATIO * statistics.median(present)
        if not wins:
            self.postpone(step)
        elif step > 0:  # a count that falls soon after it rose waits longer before it may rise again
            self.patience[+1] = FIRST_WAIT
            self.patience[-1] = self.longer_patience(-1) if self.settled < self.patience[-1] else FIRST_WAIT
            self.wait[-1] = self.patience[-1]
        else:
            self.wait[+1] = 0
        if wins:
            self.level = self.trial
        self.trial = None

    def postpone(self, step: int) -> None:
        """Double the wait before the next trial in the direction of `step`."""
        self.wait[step] = self.patience[step]
        self.patience[step] = self.longer_patience(step)

    def longer_patience(self, step: int) -> int:
        """Return twice the patience in the direction of `step`, up to its limit."""
        return min(2 * self.patience[step], LONGEST_WAIT if step < 0 else 2 * FIRST_WAIT)


def size_class(size: int) -> int:
    """Return a class of sizes that differ by less than a factor of two, whose passes take about as long."""
    return size.bit_length()


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """Set the number of torch threads to `count` inside the block."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def thread_counts() -> tuple[int, ...]:
    """Return the thread counts to choose from: all usable cores, halved down to one."""
    counts = [max(1, min(torch.get_num_threads(), usable_cores()))]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    return tuple(counts)


def starting_level(counts: Sequence[int]) -> int:
    """Return the index of the count to begin with: the highest, or one thread if other processes use the cores."""
    return 0 if len(counts) < 2 or any(has_free_cores(counts[0]) for _ in range(2)) else len(counts) - 1


def has_free_cores(threads: int) -> bool:
    """Return whether `threads` cores are free right now; takes about `PROBE_SECONDS`."""
    return not probe(threads).disturbed


def probe(threads: int) -> Usage:
    """Measure some milliseconds of small parallel operations, which suffer most if cores are shared."""
    numbers = torch.zeros(PROBE_SIZE)
    with limit_threads(threads), torch.inference_mode():
        numbers.add_(1)  # starts the threads
        end, until = start_usage(), time.perf_counter() + PROBE_SECONDS
        for _ in range(PROBE_REGIONS):
            numbers.add_(1)
            if time.perf_counter() > until:
                break
        return end()


def usable_cores() -> int:
    """Return how many cores this process may keep busy, by its affinity and its control group's quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(affinity, cgroup_quota())))


def cgroup_quota(root: Path = Path("/sys/fs/cgroup"), process_groups: Path = Path("/proc/self/cgroup")) -> float:
    """Return the CPU quota of the process's control group, in cores; infinite without a limit.

    Args:
        root (Path): Where control groups are mounted.
        process_groups (Path): File that names this process's control groups.
    """
    try:
        groups = [line.split(":", 2)[1:] for line in process_groups.read_text().splitlines()]
    except OSError:
        return float("inf")
    quotas = [float("inf")]
    for controllers, path in groups:
        if not controllers:  # version 2: a limit of any group above counts as well
            folders = [root / path.lstrip("/"), *(root / path.lstrip("/")).parents]
            quotas += [read_quota(folder / "cpu.max") for folder in folders if folder.is_relative_to(root)]
        elif "cpu" in controllers.split(","):
            for folder in (root / controllers / path.lstrip("/"), root / "cpu" / path.lstrip("/"), root / "cpu"):
                quotas.append(read_quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"))
    return min(quotas)


def read_quota(*files: Path) -> float:
    """Return quota divided by period, from one file or two; infinite if there is none."""
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        return float(quota) / float(period) if float(quota) > 0 else float("inf")
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return float("inf")
