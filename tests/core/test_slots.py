"""Slot-typed streams: seven slots a frame, each with ids of its own, and no method ever steps outside."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from polydraft.core.decode import Method
from polydraft.core.drafters.network.lm import IndependentLM
from polydraft.core.law.sampling import RepetitionAware, Sampler, Sampling
from polydraft.core.methods.method import MethodContext
from polydraft.core.methods.registry import build, choices

from .conftest import NETWORKS, VOCAB, chosen

SLOTS = 7
EVERY = {choice.name: choice for choice in choices()}


@some.composite
def slot_tables(draw) -> torch.Tensor:
    """`[K, V]` bool: a few ids a slot, slots may share some."""
    table = torch.zeros(SLOTS, VOCAB, dtype=torch.bool)
    for slot in range(SLOTS):
        table[slot, draw(some.lists(some.integers(10, VOCAB - 1), min_size=1, max_size=9))] = True
    return table


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(slot_tables(), some.sampled_from([0.0, 1.0]), some.booleans(), some.integers(0, 10**6))
def test_no_method_emits_an_id_of_another_slot(lab, run, name, table, temperature, again, seed):
    made = lab(seed=seed)
    codes = torch.full((VOCAB, 4), torch.nan)
    codes[10:] = torch.nn.functional.normalize(torch.randn(VOCAB - 10, 4), dim=-1)
    kinds = [network.kind for network in NETWORKS]
    networks = {kind: lambda kind=kind: getattr(made, kind) for kind in kinds}
    context = MethodContext(
        "m", made.target(), table.any(0), 4, codes, None, networks | {"lm": lambda: IndependentLM(made.student)},
        origins=torch.arange(-3, 9),
    )  # fmt: skip
    choice = EVERY[name]
    given = {"k": 5} if "k" in choice.judge.parameters else {}
    drafter, verifier = build(replace(choice, judge_given=given), context)
    sampling = Sampling(temperature=temperature, top_k=6, repetition_aware=RepetitionAware() if again else None)
    method = Method(name, context.target, drafter, verifier, Sampler(table))
    for output in run(method, chosen(made.prompts[-2:], sampling)).outputs:
        slots = torch.arange(len(output)) % SLOTS
        assert table[slots, output].all()
