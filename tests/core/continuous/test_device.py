"""Latents on another device: every method gives what it gives on the CPU, and the host waits once a pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from polydraft.core.continuous import drafters, target
from polydraft.core.decode import Batch, Method, add_requests, decode_step, remove_requests, start_batch
from polydraft.core.target.causal import PromptInputs

from ...decoding import run
from ..far_device import Far, far_device, move
from .lab import COUPLED, lab, prompts

DRAFTERS = (None, *(name for name in lab().drafters({}) if name != "jacobi of one"))
CHAINED = tuple(lab().chained())


def ragged(method: Method, rows: list[PromptInputs], reads: list[str]) -> tuple[Batch, list[int]]:
    """Two rows start, two join, one leaves; how often the host waited in every pass."""
    batch, waits = start_batch(method, rows[:2], ids=[0, 1]), []

    def turn() -> None:
        before = len(reads)
        decode_step(method, batch)
        waits.append(len(reads) - before)

    turn()
    add_requests(method, batch, rows[2:], ids=[2, 3])
    turn()
    remove_requests(batch, {1: "loop"} if any(row.id == 1 for row in batch.running) else {})
    while len(batch):
        turn()
    return batch, waits


def check_same_on_device(name: str | None, guided: bool, verifier: Any = None) -> None:
    """Check equal latents on both devices with one read a pass; without shared noise up to rounding."""
    here, there = lab(spread=0.3), lab(spread=0.3)
    rows = [replace(prompt, max_new_tokens=7 - row) for row, prompt in enumerate(prompts(4, guided))]
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
    for one, other in zip(found.requests_in_order(), expected.requests_in_order(), strict=True):
        assert one.ids == other.ids or verifier is not None
        torch.testing.assert_close(torch.tensor(one.ids), torch.tensor(other.ids), rtol=1e-3, atol=1e-3)
    assert found.finish_reasons() == expected.finish_reasons()
    assert set(waits) == {1}, f"the host waits once a pass, not {waits} times"


@pytest.mark.parametrize(("name", "guided"), [(name, place % 2 == 0) for place, name in enumerate(DRAFTERS)])
def test_shared_noise_matches_cpu(name, guided):
    check_same_on_device(name, guided)


@pytest.mark.parametrize(("name", "guided"), [(name, place % 2 == 1) for place, name in enumerate(CHAINED)])
def test_coupled_matches_cpu(name, guided):
    check_same_on_device(name, guided, COUPLED)


def test_cpu_tensors_in_a_chain_are_caught(monkeypatch):
    """No tensor that is created for a chain may stay on the CPU."""
    honest = target.empty_latents
    for module in (drafters, target):
        monkeypatch.setattr(
            module, "empty_latents", lambda rows, length, size, device: honest(rows, length, size, "cpu")
        )
    with pytest.raises((RuntimeError, AssertionError), match="another device|Far"):
        check_same_on_device("jacobi", False)
    assert torch.zeros(1).device.type == "cpu"
