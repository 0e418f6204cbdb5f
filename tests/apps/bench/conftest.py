"""Benches are run for their form here: on a busy machine S/τ may be anything, and must not end a test."""

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
    """A round that does not count takes as long as one that does."""
    monkeypatch.setattr(timing, "WARM_UPS", 0)
