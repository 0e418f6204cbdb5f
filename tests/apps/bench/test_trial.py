"""A server keeps its answers while clients leave, rows turn NaN and it is told to stop."""

from __future__ import annotations

import pytest

from polydraft.apps.bench.service.trial import run, tell


@pytest.mark.thorough
def test_server_in_a_trial_answers_right_and_drains() -> None:
    value = run(clients=12, seconds=5, options=[])
    assert tell(value), value
    assert value["seen"]["thin"] and value["seen"]["broken"]
