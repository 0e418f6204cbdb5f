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
import threading
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
MAX_PREEMPTED_SLOWDOWN = 1.2  # times the fastest comparable pass; smaller slowdowns have other causes than preemption
MAX_SLOWDOWN = 3  # times the fastest comparable pass; the only sign of a host that takes cores from its guest
WINNING_RATIO = 0.95  # of the present count's pass time that another count must stay below to replace it
NUM_RECENT = 3  # passes whose median represents a count; if all are disturbed, fewer threads are tried
FIRST_WAIT, LONGEST_WAIT = 8, 128  # passes before a count that lost is tried again
MAX_KINDS = 256  # kinds of passes whose times are kept, since a server may have any number of method names
MAX_TRIAL_PASSES = 4  # passes after which a trial ends if none can be compared with earlier ones
PROBE_SECONDS = 0.01
PROBE_INTERVAL = 0.25  # seconds of passes between two probes
PROBE_REGIONS = 400
PROBE_SIZE = 1 << 17  # numbers of a tensor, enough for torch to divide it among all threads


@dataclass(frozen=True)
class Usage:
    """Wall and processor time of a piece of work."""

    seconds: float  # wall time
    running_share: float  # share of it that the calling thread was on a core, spinning included
    preemptions: int  # how often any thread of the process lost its core to another one

    @property
    def is_disturbed(self) -> bool:
        """Return whether other processes took cores from this one during the work."""
        return self.running_share < MIN_RUNNING_SHARE or self.preemptions > 0


def start_usage() -> Callable[[], Usage]:
    """Start to measure the calling thread's wall and processor time.

    Returns:
        A function that ends the measurement and returns the `Usage` since the start.
    """
    wall_start, running_start, preemptions_start = time.perf_counter(), time.thread_time(), num_preemptions()

    def end() -> Usage:
        """Return the usage since the start."""
        seconds = time.perf_counter() - wall_start
        running_share = (time.thread_time() - running_start) / max(seconds, 1e-9)
        return Usage(seconds, running_share, num_preemptions() - preemptions_start)

    return end


def num_preemptions() -> int:
    """Return how often threads of this process have been preempted so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if resource else 0


@dataclass
class PassMeasurement:
    """Measurement of one forward pass."""

    method: str = ""  # name of the decoding method; passes are compared with others of the same method
    size: int = 0  # scored positions of all sequences; passes are compared with others of about the same size
    threads: int = 0  # number of threads; 0 if it is not tuned
    usage: Usage | None = None  # time of the pass, set when it is over

    def compute_seconds(self, seconds: float) -> float:
        """Return how many of `seconds` of this pass the CPU computed, without waits for other processes.

        It is known for passes of one thread only, as other threads are not measured; otherwise it is all of `seconds`.
        """
        return seconds * min(1.0, self.usage.running_share) if self.usage and self.threads == 1 else seconds


class ThreadTuner:
    """Tuner of the number of CPU threads of forward passes, which compares the times of the passes themselves.

    Args:
        counts (Sequence[int]): Numbers of threads to choose from, descending. Empty: threads are not changed.
        count_index (int): Index of the count to begin with.
        are_cores_free (Callable[[int], bool] | None): Returns within milliseconds whether that many cores are free now;
            None: `has_free_cores`.
    """

    def __init__(
        self, counts: Sequence[int] = (), count_index: int = 0, are_cores_free: Callable[[int], bool] | None = None
    ) -> None:
        """Start with the count at `count_index`, and no pass measured."""
        self.counts: tuple[int, ...] = tuple(counts)
        self.count_index: int = count_index
        self.are_cores_free: Callable[[int], bool] = are_cores_free or has_free_cores
        self.trial_index: int | None = None  # index of the count that is being tried instead
        self.num_trial_passes: int = 0  # passes of the current trial
        # by index of the count and kind of the pass: seconds of recent passes, and of the fastest one
        self.recent_seconds: dict[tuple[int, Hashable], deque[float]] = {}
        self.fastest_seconds: dict[tuple[int, Hashable], float] = {}
        # Whether recent passes were disturbed. It starts as if some had been, so that a slow first pass starts a trial.
        self.recently_disturbed: deque[bool] = deque([True] * (NUM_RECENT - 1), maxlen=NUM_RECENT)
        # by direction, +1 (fewer threads) or -1 (more threads), which are steps of the index in the descending counts:
        self.passes_until_trial: dict[int, int] = {+1: 0, -1: FIRST_WAIT}  # passes before the next trial
        # passes from a lost trial to the next one
        self.trial_interval: dict[int, int] = {+1: FIRST_WAIT, -1: FIRST_WAIT}
        self.passes_at_highest: int = 0  # passes since the highest count was chosen

    @property
    def count(self) -> int:
        """Return the number of threads of the next pass."""
        return self.counts[self.count_index if self.trial_index is None else self.trial_index]

    @contextmanager
    def measure(self) -> Iterator[PassMeasurement]:
        """Run one pass, the block, with the chosen number of threads, and tune that number by the time of the pass.

        Yields:
            PassMeasurement: The block sets its `method` and `size`; `usage` is set after the block.
        """
        if not self.counts:  # the number of threads is not tuned, so the pass is not measured
            yield PassMeasurement()
            return
        measured = PassMeasurement(threads=self.count)
        with limit_threads(self.count):
            end = start_usage()
            yield measured
            measured.usage = end()
        if len(self.counts) > 1:  # a single count leaves nothing to choose
            self.observe((measured.method, size_class(measured.size)), measured.usage)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Run the block with the number of threads that is chosen for the next pass, without measuring the block.

        `counts` are the numbers of threads to choose from, and `count` is the chosen one.
        """
        if not self.counts:  # the number of threads is not tuned: the block runs with torch's present number
            yield
            return
        with limit_threads(self.count):
            yield

    def observe(self, pass_kind: Hashable, usage: Usage) -> None:
        """Record a pass that ran with the present count of threads, and start or end a trial of another count.

        Args:
            pass_kind (Hashable): Method and size class; only passes of the same kind are compared.
            usage (Usage): Time of the pass.
        """
        # times are kept by index of the count that the pass ran with, and by kind of the pass
        key = (self.count_index if self.trial_index is None else self.trial_index), pass_kind
        if len(self.fastest_seconds) > MAX_KINDS:  # bounds memory; the next passes refill both
            self.fastest_seconds.clear()
            self.recent_seconds.clear()
        self.recent_seconds.setdefault(key, deque(maxlen=NUM_RECENT)).append(usage.seconds)
        if self.trial_index is not None:  # the pass ran with a count that is being tried
            self.judge_trial(pass_kind)
        else:
            fastest = min(usage.seconds, self.fastest_seconds.get(key, usage.seconds))
            self.fastest_seconds[key] = fastest
            self.consider_trial(usage, usage.seconds / fastest)

    def consider_trial(self, usage: Usage, slowdown: float) -> None:
        """Start a trial of fewer threads if other processes disturb the passes, and of more if they no longer do.

        `counts` are descending, so that index `count_index` + 1 means fewer threads and `count_index` - 1 more. The
        same +1 and -1 are the keys of `passes_until_trial`, the passes before the next trial in either direction.

        Args:
            usage (Usage): Time of the last pass.
            slowdown (float): Its time relative to the fastest pass of its kind (method and size class).
        """
        # a slowdown is required, since preemption by kernel threads costs no time
        is_slowed_by_preemption = usage.preemptions > 0 and slowdown > MAX_PREEMPTED_SLOWDOWN
        is_disturbed = usage.running_share < MIN_RUNNING_SHARE or is_slowed_by_preemption or slowdown > MAX_SLOWDOWN
        self.recently_disturbed.append(is_disturbed)
        self.passes_until_trial = {
            direction: num_passes - 1 for direction, num_passes in self.passes_until_trial.items()
        }
        self.passes_at_highest = self.passes_at_highest + 1 if self.count_index == 0 else 0
        should_reduce = all(self.recently_disturbed) and self.count_index + 1 < len(self.counts)
        # a pass slower than MAX_SLOWDOWN costs more than a trial, so the wait for the next trial is skipped
        if should_reduce and (self.passes_until_trial[+1] <= 0 or slowdown > MAX_SLOWDOWN):
            self.begin_trial(self.count_index + 1)
        elif not is_disturbed and self.count_index > 0 and self.passes_until_trial[-1] <= 0:
            if self.are_cores_free(self.counts[self.count_index - 1]):
                self.begin_trial(self.count_index - 1)
            else:  # this probe takes time, so the next one is due only after passes of about PROBE_INTERVAL seconds
                self.passes_until_trial[-1] = 1 + int(PROBE_INTERVAL / usage.seconds)

    def begin_trial(self, trial_index: int) -> None:
        """Run the next passes with `counts[trial_index]` threads, and forget earlier times with that count."""
        self.trial_index, self.num_trial_passes = trial_index, 0
        self.recent_seconds = {key: times for key, times in self.recent_seconds.items() if key[0] != trial_index}

    def judge_trial(self, pass_kind: Hashable) -> None:
        """Count a pass of the trial, and end the trial if the pass can be compared with the present count of threads.

        The pass can be compared if passes of the same kind ran with the present count. If it was faster than the median
        of the recent ones, by more than noise (`WINNING_RATIO`), the tried count becomes the present one. If none of
        `MAX_TRIAL_PASSES` passes can be compared, the trial is lost.

        Args:
            pass_kind (Hashable): Method and size class of the pass; only passes of the same kind are compared.
        """
        assert self.trial_index is not None
        self.num_trial_passes += 1
        present_seconds = self.recent_seconds.get((self.count_index, pass_kind))
        if present_seconds is None and self.num_trial_passes < MAX_TRIAL_PASSES:
            return  # nothing to compare with yet; the trial goes on with the next pass
        direction = self.trial_index - self.count_index  # +1: fewer threads, -1: more
        trial_seconds = self.recent_seconds[self.trial_index, pass_kind][-1]
        is_faster = present_seconds is not None and trial_seconds < WINNING_RATIO * statistics.median(present_seconds)
        if not is_faster:
            self.postpone_trial(direction)
        elif direction > 0:  # fewer threads won; a count that falls soon after it rose waits longer before it may rise
            has_risen_recently = self.passes_at_highest < self.trial_interval[-1]
            self.trial_interval[+1] = FIRST_WAIT
            self.trial_interval[-1] = self.doubled_interval(-1) if has_risen_recently else FIRST_WAIT
            self.passes_until_trial[-1] = self.trial_interval[-1]
        else:  # more threads won; if they are disturbed again, fewer threads may be tried at once
            self.passes_until_trial[+1] = 0
        if is_faster:
            self.count_index = self.trial_index
        self.trial_index = None

    def postpone_trial(self, direction: int) -> None:
        """Let the next trial of fewer (+1) or more (-1) threads wait, and double the wait after that one."""
        self.passes_until_trial[direction] = self.trial_interval[direction]
        self.trial_interval[direction] = self.doubled_interval(direction)

    def doubled_interval(self, direction: int) -> int:
        """Return twice the passes between trials of fewer (+1) or more (-1) threads, up to a limit.

        The limit is lower for fewer threads, since a disturbed pass costs far more than a lost trial.
        """
        return min(2 * self.trial_interval[direction], LONGEST_WAIT if direction < 0 else 2 * FIRST_WAIT)


def size_class(size: int) -> int:
    """Return the number of bits of a pass size; passes are compared with others whose size has as many bits."""
    return size.bit_length()


outermost: threading.local = threading.local()  # `count` before the outermost `limit_threads` of this thread


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """Set the number of torch threads to `count` inside the block."""
    previous_count = torch.get_num_threads()
    if previous_count == count:  # nothing to set or to restore
        yield
        return
    is_outermost = not hasattr(outermost, "count")
    if is_outermost:
        outermost.count = previous_count
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous_count)
        if is_outermost:
            del outermost.count


@contextmanager
def all_threads() -> Iterator[None]:
    """Run the block with as many torch threads as before any `limit_threads`.

    Encoders are large products, which gain by every core, while the number of a decoder's passes is tuned to them.
    """
    with limit_threads(getattr(outermost, "count", torch.get_num_threads())):
        yield


def thread_counts() -> tuple[int, ...]:
    """Return the thread counts to choose from, descending: all usable cores, halved until one, such as (8, 4, 2, 1)."""
    counts = [max(1, min(torch.get_num_threads(), usable_cores()))]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    return tuple(counts)


def starting_count_index(counts: Sequence[int]) -> int:
    """Return the index of the thread count to begin with: 0, the highest, or the last if cores are not free now."""
    return 0 if len(counts) < 2 or any(has_free_cores(counts[0]) for _ in range(2)) else len(counts) - 1


def has_free_cores(threads: int) -> bool:
    """Return whether `threads` cores are free of other processes now, by a probe of about `PROBE_SECONDS`."""
    return not probe(threads).is_disturbed


def probe(threads: int) -> Usage:
    """Run `threads` threads for some milliseconds, and return their time and how often other processes preempted them.

    At most PROBE_REGIONS small parallel operations are run within PROBE_SECONDS. They suffer most if cores are shared,
    since all threads wait for each other at the end of every operation.
    """
    numbers = torch.zeros(PROBE_SIZE)
    with limit_threads(threads), torch.inference_mode():
        numbers.add_(1)  # starts the threads
        end_usage, deadline = start_usage(), time.perf_counter() + PROBE_SECONDS
        for _ in range(PROBE_REGIONS):
            numbers.add_(1)
            if time.perf_counter() > deadline:
                break
        return end_usage()


def usable_cores() -> int:
    """Return how many cores this process may keep busy, by its CPU affinity and the CPU quota of its cgroup."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(num_cores, cgroup_quota())))


def cgroup_quota(root: Path = Path("/sys/fs/cgroup"), process_groups: Path = Path("/proc/self/cgroup")) -> float:
    """Return the CPU quota of this process's control groups (cgroups v1 and v2), in cores; infinite without a limit.

    Args:
        root (Path): Directory where control groups are mounted.
        process_groups (Path): File that lists this process's control groups.
    """
    try:
        # a line is "hierarchy id:controllers:path"; controllers are empty for version 2
        groups = [line.split(":", 2)[1:] for line in process_groups.read_text().splitlines()]
    except OSError:
        return float("inf")
    quotas = [float("inf")]
    for controllers, path in groups:
        if not controllers:  # version 2: limits of parent groups count as well
            folders = [root / path.lstrip("/"), *(root / path.lstrip("/")).parents]
            quotas += [read_quota(folder / "cpu.max") for folder in folders if folder.is_relative_to(root)]
        elif "cpu" in controllers.split(","):  # version 1, which may be mounted at either place; files may be absent
            for folder in (root / controllers / path.lstrip("/"), root / "cpu" / path.lstrip("/"), root / "cpu"):
                quotas.append(read_quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"))
    return min(quotas)


def read_quota(*files: Path) -> float:
    """Return the CPU quota of a cgroup in cores, quota divided by period; infinite if it has none.

    Args:
        files (Path): One file of both numbers (`cpu.max`), or a file of each.
    """
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        return float(quota) / float(period) if float(quota) > 0 else float("inf")
    except (OSError, ValueError, ZeroDivisionError):  # without a quota the file says "max", which is no number
        return float("inf")
