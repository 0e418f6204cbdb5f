"""Latency of passes is measured, kept while it holds, and measured again otherwise; clocks are simulated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest

from polydraft.core.methods.tuning import MAX_REPEATS, NUM_CHECKED_PASSES, PassTimes, Timing, time_passes

NODES = (0, 4)


def clock_of(seconds: Iterator[float]) -> Callable[[], float]:
    """Return a clock between whose readings, in pairs, lie `seconds`."""
    now = 0.0
    waits = itertools.chain.from_iterable((0.0, step) for step in seconds)

    def clock() -> float:
        nonlocal now
        now += next(waits)
        return now

    return clock


@pytest.mark.parametrize("slow", [set(), {2}, {2, 3, 4, 5}, set(range(2, 200, 3))], ids=len)
def test_time_passes_keeps_the_fastest_repeat(lab, slow: set[int]) -> None:
    made = lab()
    taken = ((1 + index % 2) * (2.5 if index in slow else 1.0) for index in itertools.count())  # the sizes take turns
    timing = time_passes(made.target(), made.prompts[:1], NODES, clock_of(taken))
    assert timing == Timing({0: 1.0, 4: 2.0}, is_stable=True)


def test_time_passes_under_load_terminates_unstable(lab) -> None:
    made, passes = lab(), []
    taken = (passes.append(step) or 2.0**-step for step in itertools.count())  # every pass faster than the last
    timing = time_passes(made.target(), made.prompts[:1], NODES, clock_of(taken))
    assert not timing.is_stable and len(passes) <= 2 * MAX_REPEATS * len(NODES)


def test_timing_needs_agreement_at_every_size() -> None:
    assert Timing.of_repeats({0: [1.0, 5.0, 1.2], 4: [2.0, 2.1]}).is_stable
    assert not Timing.of_repeats({0: [1.0, 1.0], 4: [2.0, 2.9]}).is_stable
    assert not Timing({0: 1.0}, True).merge(Timing({64: 9.0}, False)).is_stable


def times_of(measured: list[tuple[int, ...]], patience: int = NUM_CHECKED_PASSES) -> PassTimes:
    def measure(nodes: Sequence[int], num_sequences: int) -> Timing:
        measured.append(tuple(nodes))
        return Timing(
            {count: 1.0 + 0.1 * (num_sequences * (count + 1) - 1) + 0.5 * (num_sequences - 1) for count in nodes}, True
        )

    return PassTimes(measure, (0, 8), (64,), patience)


def test_pass_times_measure_once_when_asked() -> None:
    measured: list[tuple[int, ...]] = []
    times = times_of(measured)
    times.observe(4, 99.0)  # nobody has asked: there is nothing to contradict
    assert not times.has_measurement and not measured and times.is_stable and not times.is_outdated
    assert times.single_sequence_latency() == times.single_sequence_latency() == {0: 1.0, 8: 1.8}
    assert times.batch_latency()[64] == pytest.approx(7.4) and times.batch_latency().keys() >= {0, 8, 64}
    assert measured == [(0, 8), (64,)] and times.has_measurement


def test_pass_times_of_batches_include_each_sequence() -> None:
    times = times_of([], patience=1)
    times.single_sequence_latency()
    for _ in range(NUM_CHECKED_PASSES):
        times.observe(15, 99.0, num_sequences=4)  # what sequences cost is not known yet
    assert not times.is_outdated
    assert times.sequence_seconds() == pytest.approx(0.5)
    for _ in range(NUM_CHECKED_PASSES):
        times.observe(15, 2.5 + 1.5, num_sequences=4)
    assert max(times._ratios) == pytest.approx(min(times._ratios)) == pytest.approx(1.0)


@pytest.mark.parametrize("factor", [0.3, 4.0])
def test_pass_times_become_outdated_after_contradicting_passes(factor: float) -> None:
    times = times_of([], patience=10)
    times.single_sequence_latency()
    for _ in range(NUM_CHECKED_PASSES + 8):
        times.observe(4, 1.4 * factor)
    assert not times.is_outdated  # patience is not over yet
    times.observe(4, 1.4 * factor)
    assert times.is_outdated


def test_pass_times_survive_single_slow_passes() -> None:
    times = times_of([], patience=10)
    times.single_sequence_latency()
    for index in range(1000):
        times.observe(8, 1.8 * (50.0 if index % 3 == 0 else 1.2))
    assert not times.is_outdated
