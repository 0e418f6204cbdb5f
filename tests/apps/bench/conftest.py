"""Fixtures for benches that are tested for their output only: on a busy machine S/τ is arbitrary."""

from __future__ import annotations

import math

import pytest

from polydraft.apps.measure import timing
from polydraft.apps.measure.peers import baseline


@pytest.fixture(autouse=True)
def no_clock_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "NOISE", math.inf)


@pytest.fixture(autouse=True)
def no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out warm-up rounds, which take as long as measured ones."""
    monkeypatch.setattr(timing, "WARM_UPS", 0)
