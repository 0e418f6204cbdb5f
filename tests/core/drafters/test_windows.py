"""Jacobi windows: what the target chose is guessed next, whether all of a window was right, or its length changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from polydraft.core.decode import Method, add_requests, decode, decode_step, start_batch
from polydraft.core.drafters.base import DraftOutcome
from polydraft.core.drafters.jacobi.sjd import REFRESHES, SJDDrafter
from polydraft.core.drafters.jacobi.window import INITIALISATIONS, JacobiDrafter, WindowInitializer
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.state import BatchState
from polydraft.core.verifiers.chain import SpeculativeSampling
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from ..conftest import finish
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


@pytest.mark.parametrize("name", ["jacobi random", "jacobi left", "local"])
def test_window_keeps_what_was_scored(lab, run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Rows join and leave, so that windows shrink and grow; what is kept of them is the target's choice."""
    made = lab()
    plain = run(made.method(), made.prompts)
    method, sizes = made.method(made.drafters([])[name]), []
    observe = type(method.drafter).observe

    def observe_and_check(drafter: Any, state: BatchState, drafter_state: Any, outcome: DraftOutcome) -> None:
        observe(drafter, state, drafter_state, outcome)
        tokens, num_committed = outcome.verification.target_tokens, outcome.verification.num_committed
        sizes.append((len(state), outcome.draft.size))
        for row, count in enumerate(drafter_state.num_scored.flatten().tolist()):
            chosen = tokens[row, int(num_committed[row]) :]
            assert count == len(chosen) and torch.equal(drafter_state.guesses[row, :count], chosen)
            if name == "local":
                logits = outcome.distribution.unfiltered_logits[row, int(num_committed[row]) :]
                assert torch.equal(drafter_state.logits[row, :count], logits)

    monkeypatch.setattr(type(method.drafter), "observe", observe_and_check)
    batch = start_batch(method, made.prompts[:1])
    for index in range(1, 5):
        decode_step(method, batch)
        decode_step(method, batch)
        add_requests(method, batch, made.prompts[index : index + 1], [index])
    assert finish(method, batch).same(plain)
    assert set(sizes) == {(1, 5), (2, 4), (3, 3), (4, 0), (5, 1)}
