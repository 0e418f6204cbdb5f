"""Batch groups: requests share one batch per method, also while a pipeline builds the method again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from polydraft.apps.server.engine import group
from polydraft.apps.server.engine.worker import EngineWorker

TARGET, OTHER_TARGET = object(), object()
PIPE: Any = SimpleNamespace(evict_method=lambda method: None)


def method(name: str = "eagle2", target: object = TARGET) -> Any:
    return SimpleNamespace(name=name, target=target)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> EngineWorker:
    monkeypatch.setattr(group, "BatchScheduler", lambda method: SimpleNamespace(num_live=0))
    return EngineWorker(8, None, lambda handle, stats: None)


def test_rebuilt_method_joins_the_running_group(worker: EngineWorker) -> None:
    old, new = method(), method()
    running = worker.group(old, PIPE, "model")
    running.jobs.append(SimpleNamespace())  # type: ignore[arg-type]
    assert worker.group(new, PIPE, "model") is running and running.method is old
    running.jobs.clear()
    replaced = worker.group(new, PIPE, "model")
    assert replaced.method is new and list(worker.groups.values()) == [replaced]


def test_other_methods_and_targets_get_groups(worker: EngineWorker) -> None:
    methods = [method(), method("eagle2(depth=3)"), method(target=OTHER_TARGET)]
    groups = {id(worker.group(each, PIPE, "model")) for each in methods}
    assert len(groups) == 3 == len(worker.groups)
    assert {id(each.usage) for each in worker.groups.values()} == {id(worker.usage["model"])}
