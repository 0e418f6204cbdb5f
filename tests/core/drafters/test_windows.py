"""Jacobi windows: what is known behind a window that was right in all places is used, as behind any other."""

from __future__ import annotations

import math

import pytest
import torch

from polydraft.core.decode import Method, decode, start
from polydraft.core.drafters.jacobi.sjd import REFRESHES, SJDDrafter
from polydraft.core.drafters.jacobi.window import INITIALISATIONS, Initial, JacobiDrafter
from polydraft.core.law.sampling import Sampling
from polydraft.core.target import Prompt
from polydraft.core.verify.chain import SpeculativeSampling
from polydraft.core.verify.tape import TapeVerifier

from ..tables import VOCAB, TableTarget

WINDOW, TOKENS, ALWAYS = 2, 10, 1


def certain() -> TableTarget:
    """A target that says one id wherever it is."""
    table = torch.full((TOKENS + WINDOW, VOCAB, VOCAB), -math.inf)
    table[..., ALWAYS] = 0
    return TableTarget(table)


def passes(method: Method, runs: int = 20) -> float:
    """Of a row, in the mean."""
    batch = start(method, [Prompt(((2, 2),), TOKENS, seed, sampling=Sampling()) for seed in range(runs)])
    for _ in decode(method, batch):
        pass
    assert all((row == ALWAYS).all() for row in batch.outputs())
    return sum(row.target_passes for row in batch.stats.values()) / runs


@pytest.mark.parametrize("init", [name for name in INITIALISATIONS if name != "random"])
@pytest.mark.parametrize("drafter", ["jacobi", *REFRESHES])
def test_calm_places_cost_a_pass_a_window(init: str, drafter: str) -> None:
    """Only the first pass guesses from nothing."""
    fill = Initial(init, torch.ones(VOCAB, dtype=torch.bool), 1)
    if drafter == "jacobi":
        method = Method("jacobi", certain(), JacobiDrafter(WINDOW, fill), TapeVerifier())  # type: ignore[arg-type]
    else:
        method = Method("sjd", certain(), SJDDrafter(WINDOW, fill, drafter), SpeculativeSampling())  # type: ignore[arg-type]
    assert passes(method) <= 1 + math.ceil((TOKENS - 1) / (WINDOW + 1))
