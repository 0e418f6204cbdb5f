"""Jacobi windows: after a window that was right everywhere, its last logits are used, as after any other."""

from __future__ import annotations

import math

import pytest
import torch

from polydraft.core.decode import Method, decode, start_batch
from polydraft.core.drafters.jacobi.sjd import REFRESHES, SJDDrafter
from polydraft.core.drafters.jacobi.window import INITIALISATIONS, JacobiDrafter, WindowInitializer
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.core.verifiers.chain import SpeculativeSampling
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from ..tables import VOCAB, TableTarget

WINDOW, TOKENS, ALWAYS = 2, 10, 1


def constant_target() -> TableTarget:
    """Return a target that generates one id everywhere."""
    table = torch.full((TOKENS + WINDOW, VOCAB, VOCAB), -math.inf)
    table[..., ALWAYS] = 0
    return TableTarget(table)


def mean_passes(method: Method, runs: int = 20) -> float:
    """Return the mean number of target passes of a row."""
    batch = start_batch(
        method, [PromptInputs(((2, 2),), TOKENS, seed, sampling_params=SamplingParams()) for seed in range(runs)]
    )
    for _ in decode(method, batch):
        pass
    assert all((row == ALWAYS).all() for row in batch.outputs())
    return sum(row.target_passes for row in batch.stats.values()) / runs


@pytest.mark.parametrize("init", [name for name in INITIALISATIONS if name != "random"])
@pytest.mark.parametrize("drafter", ["jacobi", *REFRESHES])
def test_constant_target_costs_one_pass_per_window(init: str, drafter: str) -> None:
    """Only the first pass guesses from nothing."""
    fill = WindowInitializer(init, torch.ones(VOCAB, dtype=torch.bool), 1)
    if drafter == "jacobi":
        method = Method("jacobi", constant_target(), JacobiDrafter(WINDOW, fill), SharedNoiseVerifier())  # type: ignore[arg-type]
    else:
        method = Method("sjd", constant_target(), SJDDrafter(WINDOW, fill, drafter), SpeculativeSampling())  # type: ignore[arg-type]
    assert mean_passes(method) <= 1 + math.ceil((TOKENS - 1) / (WINDOW + 1))
