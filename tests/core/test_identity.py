"""Same seed, same tokens: every drafter against plain decoding, in every setting that could matter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.sampling.params import RepetitionAware, SamplingParams

from ..covering import every_pair
from .conftest import DTYPES, KINDS, VOCAB, with_sampling

SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(),
    "warped": SamplingParams(temperature=0.8, top_k=30, top_p=0.95, min_p=0.001, repetition_penalty=1.3),
}


@pytest.mark.parametrize(
    ("kind", "setting", "guidance", "rows"), every_pair(KINDS, SETTINGS, (1.0, 2.5), (5, 1)), indirect=["kind"]
)
def test_every_drafter_equals_plain_decoding(lab, run, kind, setting, guidance, rows):
    made, sampling = lab(kind), SETTINGS[setting]
    prompts, guided = with_sampling(made.prompts[-rows:], sampling, guidance), guidance != 1
    plain = run(made.method(None, guided), prompts)
    assert plain.tau == 1
    alone = run(made.method(None, guided), prompts[-1:])
    assert torch.equal(alone.outputs[0], plain.outputs[-1]), "a row depends on its neighbours"
    for name, drafter in made.drafters(plain.outputs).items():
        drafted = run(made.method(drafter, guided), prompts)
        assert drafted.same(plain), name
        if name.startswith(("oracle", "lm")):
            assert drafted.tau > 1.5, f"{name} accepted too little for equality to mean anything"


@pytest.mark.parametrize(
    ("dtype", "penalty", "again"),
    every_pair(DTYPES, (1.0, 1.3), (RepetitionAware(), RepetitionAware(6, 0.15, banned=True))),
)
def test_repetition_aware_drafting_equals_plain_decoding(lab, run, dtype, penalty, again):
    """Check that nodes are verified with the recent tokens of their own path; few likely ids make repeats frequent."""
    made = lab(DTYPES[dtype])
    sampling = SamplingParams(top_k=3, repetition_penalty=penalty, repetition_aware=again, min_tokens=8)
    prompts = with_sampling(made.prompts, sampling)
    plain = run(made.method(), prompts)
    without = run(made.method(), with_sampling(made.prompts, replace(sampling, repetition_aware=None)))
    assert not plain.same(without), "nothing was redrawn"
    for name, drafter in made.drafters(plain.outputs).items():
        if name.startswith(("oracle", "lm", "heads", "block")):
            drafted = run(made.method(drafter), prompts)
            assert drafted.same(plain), name
            assert drafted.tau > 1.5 or name.startswith(("heads", "block")), name


@pytest.mark.parametrize(("family", "setting"), every_pair(("mistral", "gemma"), ("warped", "greedy")))
def test_sliding_window_drafting_equals_plain_decoding(lab, run, family, setting):
    made = lab(torch.float32, family)
    prompts = with_sampling(made.prompts, SETTINGS[setting])
    plain = run(made.method(), prompts)
    for name, drafter in made.drafters(plain.outputs).items():
        assert run(made.method(drafter), prompts).same(plain), name


def test_oracle_errors_cover_every_depth_and_branch(lab, run):
    """Check that the oracle is both wrong and right at every depth, which the equality tests rely on."""
    made = lab()
    plain = run(made.method(), made.prompts)
    oracle = OracleDrafter(dict(enumerate(plain.outputs)), VOCAB, reach=4, width=3, acceptance=0.8, leads=0)
    accepted, rejected = set(), set()

    class RecordingOracle(OracleDrafter):
        def observe(self, state, drafter_state, outcome):
            for path in outcome.verification.path.tolist():
                found = [node for node in path if node >= 0]
                accepted.update((node // 3, node % 3) for node in found)
                if len(found) < 4:
                    rejected.add(len(found))

    watched = RecordingOracle(**vars(oracle))
    assert run(made.method(watched), made.prompts).same(plain)
    assert accepted == {(depth, branch) for depth in range(4) for branch in range(3)}
    assert rejected == {0, 1, 2, 3}


def test_grammar_states_are_obeyed_and_identical(lab, run):
    """Check a grammar whose odd states allow the upper half of the vocabulary, even ones the lower."""
    made = lab()
    ids = torch.arange(VOCAB)
    mask = torch.stack([ids < 30, ids >= 30])
    plain = run(made.method(mask=mask), made.prompts)
    for row in plain.outputs:
        assert ((row >= 30) == (torch.arange(len(row)) % 2 == 1)).all()
    for name, drafter in made.drafters(plain.outputs).items():
        assert run(made.method(drafter, mask=mask), made.prompts).same(plain), name


def test_exact_methods_equal_plain_decoding_when_greedy(lab, run):
    """Check methods with fresh noise too, in float64: moved KV entries change the summation order."""
    made = lab(torch.float64)
    prompts = with_sampling(made.prompts, SamplingParams(temperature=0))
    plain = run(made.method(), prompts)
    for name, (drafter, verifier) in made.verified_drafters().items():
        if verifier.guarantee == "exact":
            assert run(made.method(drafter, False, verifier), prompts).same(plain), name
