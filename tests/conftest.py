"""Configuration of all tests: no result depends on the speed or the load of the processor.

Workers of a parallel run (`pytest -n`) share the cores: each computes on its part of them. How long an example of a
property takes decides nothing, and how much is drafted follows from passes of a fixed cost.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if WORKERS > 1:  # before anything imports torch, and for the commands that tests start
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // WORKERS))

os.environ["POLYDRAFT_CACHE"] = "off"  # what one test learns of speeds must not reach another
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
gc.disable()  # Until everything is imported, none of which becomes garbage.


FIXED_OVERHEAD = 0.0005  # seconds that a step takes beside its pass
LONG_FILES = ("tests/test_packaging.py", "tests/apps/ui/", "tests/apps/server/", "tests/apps/bench/", "tests/core/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest files first, so that no worker ends alone with one of them."""
    items.sort(key=lambda item: next((place for place, name in enumerate(LONG_FILES) if item.nodeid.startswith(name)),
                                     len(LONG_FILES)))  # fmt: skip


def pytest_collection_finish() -> None:
    """Exclude imported objects, which are millions, from garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def passes_of_fixed_cost() -> Iterator[None]:
    """Tune windows and trees to a fixed cost of passes instead of to timings of this machine."""
    from polydraft.core.drafters.auto.drafter import AutoDrafter
    from polydraft.core.drafters.base import PassCost
    from polydraft.core.methods.budget import NodeBudget
    from polydraft.core.methods.tuning import PassTimes, Timing
    from polydraft.modalities import pipeline

    def fixed_seconds(nodes: int) -> float:
        return 0.007 + 0.0002 * nodes

    def time_passes(target: Any, prompts: Any, nodes: Sequence[int], clock: Any) -> Timing:
        return Timing({count: fixed_seconds(count) for count in nodes}, is_stable=True)

    observe = NodeBudget.observe

    def observe_fixed(
        budget: NodeBudget, positions: int, seconds: float, num_accepted: int = 0, num_rows: int = 1
    ) -> None:
        observe(budget, positions, fixed_seconds(positions), num_accepted, num_rows)

    record = AutoDrafter.record

    def record_fixed(drafter: AutoDrafter, drafter_state: Any, cost: PassCost) -> None:
        record(drafter, drafter_state, replace(cost, seconds=fixed_seconds(cost.num_scored)))

    observe_overhead = PassTimes.observe_overhead

    def observe_fixed_overhead(times: PassTimes, positions: int, seconds: float) -> None:
        observe_overhead(times, positions, FIXED_OVERHEAD)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PassTimes, "observe_overhead", observe_fixed_overhead)
        patch.setattr(pipeline, "time_passes", time_passes)
        patch.setattr(NodeBudget, "observe", observe_fixed)
        patch.setattr(AutoDrafter, "record", record_fixed)
        yield
