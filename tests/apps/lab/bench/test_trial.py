"""A server keeps its answers while clients disconnect, logits turn NaN and SIGTERM comes."""

from __future__ import annotations

import pytest

from polydraft.apps.lab.bench.trial import print_outcome, run


@pytest.mark.thorough
def test_trial_server_answers_correctly_and_drains() -> None:
    value = run(clients=12, seconds=5, options=[])
    assert print_outcome(value), value
    assert value["seen"]["thin"] and value["seen"]["broken"]
