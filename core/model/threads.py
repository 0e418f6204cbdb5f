"""Choose how many threads compute a pass, from what passes measure.

The threads of a pass wait for each other some 120 times, spinning. Where another process takes one of the cores, a wait
can last a time slice of the scheduler, and a pass of 7 ms takes 300. No setting of the spinning is right for every
machine and model, so the number of threads follows the passes: one that lost its cores to others is compared with one
of fewer threads, and the faster number stays; later more threads are tried again, ever more seldom while they lose.

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
except ImportError:  # Windows counts no preemptions; its passes are judged by the calling thread's share alone
    resource = None  # type: ignore[assignment]

SHARE = 0.9  # of a pass that the calling thread runs, at least, while its cores are its own
SLOWED = 1.2  # times the fastest pass of its kind: less is no matter of who else runs
SLOWER = 3  # times the fastest pass of its kind: a host that takes its cores away shows in nothing else
WINS = 0.95  # a count replaces the present one where its passes take less than this of the present one's
RECENT = 3  # passes whose median stands for a count, and that must all be disturbed before fewer threads are tried
FIRST_WAIT, LONGEST_WAIT = 8, 128  # passes before a number of threads that lost is tried again
KINDS = 256  # of passes that are remembered; a server's methods have any number of names
MOST_TRIES = 4  # passes of a trial, where none is of a kind that was timed before
PROBE_SECONDS = 0.01
PROBE_EVERY = 0.25  # seconds of passes between two probes
PROBE_REGIONS = 400
PROBE_NUMBERS = 1 << 17  # of a tensor that is large enough to be shared by all threads


@dataclass(frozen=True)
class Usage:
    """Wall and processor time of one stretch of work."""

    seconds: float  # wall time
    running: float  # share of it that the calling thread was on a core; spinning counts as running
    preemptions: int  # how often any thread of the process lost its core to somebody else

    @property
    def disturbed(self) -> bool:
        """Return whether others took cores meanwhile."""
        return self.running < SHARE or self.preemptions > 0


def start_usage() -> Callable[[], Usage]:
    """Start a measurement and return the function that ends it."""
    wall, running, preempted = time.perf_counter(), time.thread_time(), preemptions()

    def end() -> Usage:
        seconds = time.perf_counter() - wall
        return Usage(seconds, (time.thread_time() - running) / max(seconds, 1e-9), preemptions() - preempted)

    return end


def preemptions() -> int:
    """Return how often threads of this process have lost their core to others so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if resource else 0


@dataclass
class Measured:
    """One pass under way, and what it took once it is over."""

    method: str = ""  # passes are compared with others of the same method
    size: int = 0  # scored positions of all sequences; passes are compared with others of about the same size
    threads: int = 0  # that compute it; 0 where nobody counts
    usage: Usage | None = None

    def own_seconds(self, seconds: float) -> float:
        """Return the part of `seconds` that was spent computing, as far as one thread can tell it from waiting."""
        return seconds * min(1.0, self.usage.running) if self.usage and self.threads == 1 else seconds


class ThreadTuner:
    """Number of threads of a method's passes, tuned while they run.

    Args:
        counts (Sequence[int]): Numbers of threads to choose from, falling. Empty: threads are left alone.
        level (int): Index of the count to begin with.
        quiet (Callable[[int], bool]): Tell whether so many threads run undisturbed now, in a few milliseconds.
    """

    def __init__(
        self, counts: Sequence[int] = (), level: int = 0, quiet: Callable[[int], bool] | None = None
    ) -> None:
        self.counts, self.level, self.quiet = tuple(counts), level, quiet or undisturbed
        self.trial: int | None = None  # index of the count that is being tried
        self.tries = 0
        self.times: dict[tuple[int, Hashable], deque[float]] = {}  # seconds of recent passes, by level and kind
        self.fastest: dict[tuple[int, Hashable], float] = {}  # seconds, by level and kind
        # Which recent passes others disturbed; as if some had before the first, so that a slow start is looked into.
        self.disturbed: deque[bool] = deque([True] * (RECENT - 1), maxlen=RECENT)
        self.wait = {+1: 0, -1: FIRST_WAIT}  # passes before fewer (+1) and more (-1) threads may be tried
        self.patience = {+1: FIRST_WAIT, -1: FIRST_WAIT}
        self.settled = 0  # passes since the highest count was taken up

    @property
    def count(self) -> int:
        """Return the number of threads of the next pass."""
        return self.counts[self.level if self.trial is None else self.trial]

    @contextmanager
    def measure(self) -> Iterator[Measured]:
        """Run one pass with the chosen number of threads and learn from what it took."""
        if not self.counts:
            yield Measured()
            return
        measured = Measured(threads=self.count)
        with limited(self.count):
            end = start_usage()
            yield measured
            measured.usage = end()
        if len(self.counts) > 1:
            self.observe((measured.method, size_class(measured.size)), measured.usage)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Run something that is no pass with the chosen number of threads."""
        if not self.counts:
            yield
            return
        with limited(self.count):
            yield

    def observe(self, kind: Hashable, usage: Usage) -> None:
        """Take note of a pass of the present count.

        Args:
            kind (Hashable): Passes of one kind are comparable.
            usage (Usage): What the pass took.
        """
        level = self.level if self.trial is None else self.trial
        if len(self.fastest) > KINDS:
            self.fastest.clear()
            self.times.clear()
        self.times.setdefault((level, kind), deque(maxlen=RECENT)).append(usage.seconds)
        if self.trial is not None:
            self.judge_trial(kind)
        else:
            fastest = self.fastest[level, kind] = min(usage.seconds, self.fastest.get((level, kind), usage.seconds))
            self.consider_trial(usage, usage.seconds / fastest)

    def consider_trial(self, usage: Usage, slowdown: float) -> None:
        """Try fewer threads where passes are disturbed, and more where they no longer are.

        Args:
            usage (Usage): What the last pass took.
            slowdown (float): Times the fastest pass of its kind that it took.
        """
        slowed = usage.preemptions > 0 and slowdown > SLOWED  # the kernel's own threads take no time
        disturbed = usage.running < SHARE or slowed or slowdown > SLOWER
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
                self.wait[-1] = 1 + int(PROBE_EVERY / usage.seconds)

    def begin_trial(self, level: int) -> None:
        """Give the next passes the count of `level`, whose earlier times say nothing about now."""
        self.trial, self.tries = level, 0
        self.times = {key: times for key, times in self.times.items() if key[0] != level}

    def judge_trial(self, kind: Hashable) -> None:
        """Keep the count on trial if its last pass beat the present count's of the same kind."""
        assert self.trial is not None
        self.tries += 1
        present = self.times.get((self.level, kind))
        if present is None and self.tries < MOST_TRIES:
            return
        step = self.trial - self.level
        wins = present is not None and self.times[self.trial, kind][-1] < WINS * statistics.median(present)
        if not wins:
            self.put_off(step)
        elif step > 0:  # others are at work: who fell at once after rising waits longer before the next rise
            self.patience[+1] = FIRST_WAIT
            self.patience[-1] = self.longer(-1) if self.settled < self.patience[-1] else FIRST_WAIT
            self.wait[-1] = self.patience[-1]
        else:
            self.wait[+1] = 0
        if wins:
            self.level = self.trial
        self.trial = None

    def put_off(self, step: int) -> None:
        """Wait for the next trial in the direction of `step` twice as long as for the last."""
        self.wait[step] = self.patience[step]
        self.patience[step] = self.longer(step)

    def longer(self, step: int) -> int:
        """Return twice the patience in the direction of `step`, as far as it goes."""
        return min(2 * self.patience[step], LONGEST_WAIT if step < 0 else 2 * FIRST_WAIT)


def size_class(size: int) -> int:
    """Return which passes take about as long as one of `size` scored positions: those within a factor of two."""
    return size.bit_length()


@contextmanager
def limited(count: int) -> Iterator[None]:
    """Compute with `count` threads inside the block, and with as many as before behind it."""
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
    """Return the numbers of threads worth choosing from here: all that may be used, and halves of them down to one."""
    counts = [max(1, min(torch.get_num_threads(), usable_cores()))]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    return tuple(counts)


def starting_level(counts: Sequence[int]) -> int:
    """Return the index of the count to begin with: the highest, or one thread while others are at work."""
    return 0 if len(counts) < 2 or any(undisturbed(counts[0]) for _ in range(2)) else len(counts) - 1


def undisturbed(threads: int) -> bool:
    """Return whether `threads` have cores of their own right now; takes `PROBE_SECONDS` at most, and one more wait."""
    return not probe(threads).disturbed


def probe(threads: int) -> Usage:
    """Measure a few milliseconds of small parallel operations, which suffer first where cores are shared."""
    numbers = torch.zeros(PROBE_NUMBERS)
    with limited(threads), torch.inference_mode():
        numbers.add_(1)  # wakes the threads up
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


def cgroup_quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Return the processor time a second that the control group may use, in cores; infinite without a limit.

    Args:
        root (Path): Where control groups are mounted.
        own (Path): The file that names this process's groups.
    """
    try:
        groups = [line.split(":", 2)[1:] for line in own.read_text().splitlines()]
    except OSError:
        return float("inf")
    quotas = [float("inf")]
    for controllers, path in groups:
        if not controllers:  # version 2: a limit of any group above counts as well
            places = [root / path.lstrip("/"), *(root / path.lstrip("/")).parents]
            quotas += [read_quota(place / "cpu.max") for place in places if place.is_relative_to(root)]
        elif "cpu" in controllers.split(","):
            for place in (root / controllers / path.lstrip("/"), root / "cpu" / path.lstrip("/"), root / "cpu"):
                quotas.append(read_quota(place / "cpu.cfs_quota_us", place / "cpu.cfs_period_us"))
    return min(quotas)


def read_quota(*files: Path) -> float:
    """Return quota over period as they stand in one file or two; infinite where there is none."""
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        return float(quota) / float(period) if float(quota) > 0 else float("inf")
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return float("inf")
