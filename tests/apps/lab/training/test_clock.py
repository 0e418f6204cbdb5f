"""The training clock counts its steps, long ones too, and not the time for which the process was stopped."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from polydraft.apps.lab.training import clock as clocks
from polydraft.apps.lab.training.clock import LONGEST, Clock


def test_clock_ignores_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(clocks, "time", SimpleNamespace(monotonic=lambda: now[0]))  # not everybody's: loops sleep by it
    clock, spent = Clock(before=7.0), []
    for passed in (0.0, 2.0, LONGEST - 1, 1700.0, 3.0):
        now[0] += passed
        spent.append(clock.spent())
    assert spent == [7.0, 9.0, 8.0 + LONGEST, 8.0 + LONGEST, 11.0 + LONGEST]
