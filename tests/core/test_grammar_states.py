"""Slot-typed streams: seven slots per frame, each with ids of its own, which no method may leave."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from polydraft.core.decode import Method
from polydraft.core.drafters.heads.ctc import CTCModel
from polydraft.core.drafters.network.draft_model import DraftModel
from polydraft.core.methods.registry import build, methods
from polydraft.core.methods.spec import MethodContext
from polydraft.core.sampling.params import RepetitionAware, SamplingParams
from polydraft.core.sampling.sampler import Sampler

from .conftest import NETWORKS, VOCAB, with_sampling

SLOTS = 7
EVERY = {choice.name: choice for choice in methods()}


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
def test_methods_emit_only_ids_of_their_slot(lab, run, name, table, temperature, again, seed):
    made = lab(seed=seed)
    codes = torch.full((VOCAB, 4), torch.nan)
    codes[10:] = torch.nn.functional.normalize(torch.randn(VOCAB - 10, 4), dim=-1)
    kinds = [network.kind for network in NETWORKS]
    networks = {kind: lambda kind=kind: getattr(made, kind) for kind in kinds}
    networks["ctc"] = lambda: CTCModel(made.model.config, words=[1, 2])
    context = MethodContext(
        "m", made.target(), table.any(0), 4, codes, None, networks | {"lm": lambda: DraftModel(made.student)},
        preview_index=torch.arange(-3, 9), has_hypotheses=True,
    )  # fmt: skip
    choice = EVERY[name]
    given = {"k": 5} if "k" in choice.verifier.parameters else {}
    drafter, verifier = build(replace(choice, verifier_params=given), context)
    sampling = SamplingParams(temperature=temperature, top_k=6, repetition_aware=RepetitionAware() if again else None)
    method = Method(name, context.target, drafter, verifier, Sampler(table))
    guesses = [replace(prompt, hypothesis=tuple(range(VOCAB))) for prompt in made.prompts[-2:]]
    for output in run(method, with_sampling(guesses, sampling)).outputs:
        slots = torch.arange(len(output)) % SLOTS
        assert table[slots, output].all()
