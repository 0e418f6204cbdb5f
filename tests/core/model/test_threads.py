"""Thread tuning, on simulated passes: their time follows from the number of threads and of busy neighbour processes, so
that nothing depends on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from polydraft.core.model import threads
from polydraft.core.model.threads import (
    FIRST_WAIT,
    LONGEST_WAIT,
    ThreadTuner,
    Usage,
    all_threads,
    cgroup_quota,
    limit_threads,
    thread_counts,
    usable_cores,
)

SMALL, LARGE = {2: 0.007, 1: 0.0085}, {2: 5.0, 1: 9.5}  # seconds of an undisturbed pass, by thread count
LOST = 120 * 0.003  # seconds that a pass waits at its barriers for a preempted thread


@dataclass
class Machine:
    """Simulated machine of two cores, some of which other processes use."""

    alone: dict[int, float]
    neighbours: int = 0
    passes: list[float] = field(default_factory=list)

    def quiet(self, count: int) -> bool:
        return count + self.neighbours <= 2

    def run(self, tuner: ThreadTuner, passes: int = 1, size: int = 8) -> list[float]:
        """Run `passes` simulated passes and return their seconds."""
        taken = []
        for _ in range(passes):
            count = tuner.count
            if self.quiet(count):
                usage = Usage(self.alone[count], 1.0, 0)
            else:
                barriers = LOST if count > 1 else 0.0
                share = 2 / (count + self.neighbours)
                usage = Usage(self.alone[count] / share + barriers, share, 12)
            tuner.observe(size, usage)
            taken.append(usage.seconds)
        return taken


def tuner_on(machine: Machine) -> ThreadTuner:
    return ThreadTuner((2, 1), are_cores_free=machine.quiet)


@pytest.mark.parametrize("neighbours", [1, 2, 10])
def test_tuner_with_busy_neighbours_uses_one_thread(neighbours: int) -> None:
    machine = Machine(SMALL, neighbours)
    tuner = tuner_on(machine)
    first, rest = machine.run(tuner, 2), machine.run(tuner, 1000)
    assert first[0] > 5 * first[1]  # one slow pass is enough when nothing is known yet
    assert max(rest) == min(rest) and tuner.count == 1


def test_tuner_alone_keeps_all_threads() -> None:
    machine = Machine(SMALL)
    tuner = tuner_on(machine)
    assert machine.run(tuner, 300) == [SMALL[2]] * 300


def test_tuner_alone_ignores_occasional_disturbances() -> None:
    machine, taken = Machine(SMALL), []
    tuner = tuner_on(machine)
    for index in range(1000):
        if index % 5 < 2:  # two in a row, of five
            tuner.observe(8, Usage(1.6 * SMALL[tuner.count], 0.7, 1))
        else:
            taken += machine.run(tuner)
    assert sum(taken) < 1.05 * len(taken) * SMALL[2]


def test_tuner_returns_when_neighbours_leave() -> None:
    machine = Machine(SMALL, 2)
    tuner = tuner_on(machine)
    machine.run(tuner, 5000)
    machine.neighbours = 0
    machine.run(tuner, LONGEST_WAIT + 2)
    assert tuner.count == 2 and machine.run(tuner, 100) == [SMALL[2]] * 100


def test_tuner_reacts_at_once_when_neighbours_come_back() -> None:
    machine = Machine(SMALL)
    tuner = tuner_on(machine)
    machine.run(tuner, 100)
    for _ in range(3):
        machine.neighbours = 2
        assert sum(machine.run(tuner, 50)[4:]) < 46 * 2 * SMALL[1]  # at most four passes are lost
        machine.neighbours = 0
        machine.run(tuner, LONGEST_WAIT)


def test_tuner_notices_passes_several_times_slower() -> None:
    """A host that takes cores from a virtual machine shows neither in shares nor in preemptions."""
    machine = Machine(SMALL)
    tuner = tuner_on(machine)
    machine.run(tuner, 50)
    for _ in range(10):
        tuner.observe(8, Usage({2: 0.3, 1: 0.012}[tuner.count], 1.0, 0))
    assert tuner.count_index == 1


def test_tuner_of_large_model_keeps_all_threads() -> None:
    """In a long pass, waiting at barriers costs less than the second core gains."""
    machine = Machine(LARGE, 1)
    tuner = tuner_on(machine)
    taken = machine.run(tuner, 400)
    assert taken.count(min(taken)) > 0.9 * len(taken) and tuner.count == 2


def test_tuner_compares_passes_of_one_size() -> None:
    """Passes of different sizes are not comparable, however fast."""
    tuner = ThreadTuner((2, 1))
    tuner.observe(6, Usage(500.0, 0.6, 9))
    assert tuner.count == 1  # on trial
    tuner.observe(1, Usage(300.0, 0.6, 9))
    assert tuner.count == 1 and tuner.count_index == 0
    tuner.observe(6, Usage(900.0, 0.6, 9))
    assert tuner.count == 2


def test_tuner_remembers_a_bounded_number_of_kinds() -> None:
    tuner = ThreadTuner((2, 1))
    for kind in range(10 * threads.MAX_KINDS):
        tuner.observe(("a method", kind), Usage(0.007, 1.0, 0))
    assert len(tuner.fastest_seconds) <= threads.MAX_KINDS + 1 and len(tuner.recent_seconds) <= threads.MAX_KINDS + 2


def test_tuner_with_many_cores_halves() -> None:
    tuner = ThreadTuner((8, 4, 2, 1), are_cores_free=lambda count: False)
    for _ in range(60):
        tuner.observe(3, Usage({8: 90.0, 4: 20.0, 2: 25.0, 1: 40.0}[tuner.count], 0.5, 5))
    assert tuner.counts[tuner.count_index] == 4


def test_tuner_without_counts_leaves_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: pytest.fail("threads were set"))
    with ThreadTuner().measure() as measured, ThreadTuner().apply():
        measured.size = 3
    assert measured.usage is None and measured.compute_seconds(2.0) == 2.0


def test_measure_runs_with_the_count_and_restores_it() -> None:
    before, tuner = torch.get_num_threads(), ThreadTuner((3, 1))
    with tuner.measure() as measured:
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before and measured.usage is not None
    with pytest.raises(ValueError), tuner.measure():
        raise ValueError
    assert torch.get_num_threads() == before and len(tuner.recent_seconds) == 1  # a failed pass is not recorded
    with limit_threads(2):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


def test_compute_seconds_of_one_thread_exclude_waiting() -> None:
    one, two = (threads.PassMeasurement("ar", 1, count, Usage(4.0, 0.25, 3)) for count in (1, 2))
    assert one.compute_seconds(4.0) == 1.0 and two.compute_seconds(4.0) == 4.0


def test_thread_counts_respect_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    monkeypatch.setattr(threads, "cgroup_quota", lambda: float("inf"))
    assert thread_counts() == (12, 6, 3, 1)
    for quota, cores in ((4.0, 4), (1.5, 1), (0.2, 1)):
        monkeypatch.setattr(threads, "cgroup_quota", lambda quota=quota: quota)
        assert usable_cores() == thread_counts()[0] == cores
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # as set by OMP_NUM_THREADS
    assert thread_counts() == (1,)


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/job/task\n", {"job/cpu.max": "150000 100000", "job/task/cpu.max": "max 100000"}, 1.5),
        ("0::/job\n", {"job/cpu.max": "max 100000"}, float("inf")),
        ("0::/\n", {"cpu.max": "400000 100000"}, 4.0),
        ("4:cpu,cpuacct:/job\n0::/\n", {
            "cpu,cpuacct/job/cpu.cfs_quota_us": "50000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
        }, 0.5),
        ("4:cpu:/job\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, float("inf")),
        ("0::/job\n", {"job/cpu.max": "junk"}, float("inf")),
        ("", {}, float("inf")),
    ],
)  # fmt: skip
def test_cgroup_quota_reads_both_versions(groups: str, files: dict[str, str], cores: float, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    process_groups = tmp_path / "process_groups"
    process_groups.write_text(groups)
    assert cgroup_quota(tmp_path, process_groups) == cores
    assert cgroup_quota(tmp_path, tmp_path / "absent") == float("inf")


def test_probe_ends_in_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PROBE_SECONDS", 0.0)
    usage = threads.probe(1)
    assert usage.seconds > 0 and FIRST_WAIT < LONGEST_WAIT


def test_all_threads_lifts_outermost_limit() -> None:
    before = torch.get_num_threads()
    with limit_threads(before + 2), limit_threads(1):
        assert torch.get_num_threads() == 1
        with all_threads():
            assert torch.get_num_threads() == before
        assert torch.get_num_threads() == 1
    with all_threads():
        assert torch.get_num_threads() == before
