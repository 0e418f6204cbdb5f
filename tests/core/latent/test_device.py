"""Latents on another device: every method says what it says on the CPU, and the host waits once a pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from polydraft.core.decode import Batch, Method, join, leave, start, step
from polydraft.core.latent import drafters, target
from polydraft.core.target import Prompt

from ...decoding import run
from ..far_device import Far, far_device, move
from .lab import COUPLED, lab, prompts

DRAFTERS = (None, *(name for name in lab().drafters({}) if name != "jacobi of one"))
CHAINED = tuple(lab().chained())


def ragged(method: Method, rows: list[Prompt], reads: list[str]) -> tuple[Batch, list[int]]:
    """Two rows start, two join, one leaves; how often the host waited in every pass."""
    batch, waits = start(method, rows[:2], ids=[0, 1]), []

    def turn() -> None:
        before = len(reads)
        step(method, batch)
        waits.append(len(reads) - before)

    turn()
    join(method, batch, rows[2:], ids=[2, 3])
    turn()
    leave(batch, {1: "loop"} if any(row.id == 1 for row in batch.live) else {})
    while len(batch):
        turn()
    return batch, waits


def same_there(name: str | None, guided: bool, verifier: Any = None) -> None:
    """Equal latents here and there, with one read a pass there; off the tape equal but for rounding."""
    here, there = lab(spread=0.3), lab(spread=0.3)
    rows = [replace(prompt, budget=7 - row) for row, prompt in enumerate(prompts(4, guided))]
    recorded = dict(enumerate(run(here.method(None, guided), rows)[0]))
    make = here.drafters(recorded).get(name)
    expected, _ = ragged(here.method(make, guided, verifier), rows, [])
    with far_device() as reads:
        for part in there.parts:
            move(part)
        method = there.method(there.drafters(recorded).get(name), guided, verifier)
        reads.clear()
        found, waits = ragged(method, rows, reads)
        assert isinstance(found.state.tokens, Far)
    for one, other in zip(found.in_order(), expected.in_order(), strict=True):
        assert one.ids == other.ids or verifier is not None
        torch.testing.assert_close(torch.tensor(one.ids), torch.tensor(other.ids), rtol=1e-3, atol=1e-3)
    assert found.finish_reasons() == expected.finish_reasons()
    assert set(waits) == {1}, f"the host waits once a pass, not {waits} times"


@pytest.mark.parametrize(("name", "guided"), [(name, place % 2 == 0) for place, name in enumerate(DRAFTERS)])
def test_on_the_tape(name, guided):
    same_there(name, guided)


@pytest.mark.parametrize(("name", "guided"), [(name, place % 2 == 1) for place, name in enumerate(CHAINED)])
def test_coupled(name, guided):
    same_there(name, guided, COUPLED)


def test_a_mistake_is_seen(monkeypatch):
    """Nothing that is made anew for a chain may stay on the CPU."""
    honest = target.nothing
    for module in (drafters, target):
        monkeypatch.setattr(module, "nothing", lambda rows, length, size, device: honest(rows, length, size, "cpu"))
    with pytest.raises((RuntimeError, AssertionError), match="another device|Far"):
        same_there("jacobi", False)
    assert torch.zeros(1).device.type == "cpu"
