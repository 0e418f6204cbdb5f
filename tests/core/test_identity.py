"""Same seed, same tokens: every drafter against plain decoding, in every setting that could make a difference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.law.sampling import RepetitionAware, Sampling

from ..covering import every_pair
from .conftest import DTYPES, KINDS, VOCAB, chosen

SETTINGS = {
    "greedy": Sampling(temperature=0),
    "sampled": Sampling(),
    "warped": Sampling(temperature=0.8, top_k=30, top_p=0.95, min_p=0.001, repetition_penalty=1.3),
}


@pytest.mark.parametrize(
    ("kind", "setting", "guidance", "rows"), every_pair(KINDS, SETTINGS, (1.0, 2.5), (5, 1)), indirect=["kind"]
)
def test_every_drafter_equals_plain_decoding(lab, run, kind, setting, guidance, rows):
    made, sampling = lab(kind), SETTINGS[setting]
    prompts, guided = chosen(made.prompts[-rows:], sampling, guidance), guidance != 1
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
def test_redrawing_repeats_is_part_of_the_law(lab, run, dtype, penalty, again):
    """Every node is judged by the recent tokens of its own path; few likely ids make repeats frequent."""
    made = lab(DTYPES[dtype])
    sampling = Sampling(top_k=3, repetition_penalty=penalty, repetition_aware=again, min_tokens=8)
    prompts = chosen(made.prompts, sampling)
    plain = run(made.method(), prompts)
    without = run(made.method(), chosen(made.prompts, replace(sampling, repetition_aware=None)))
    assert not plain.same(without), "nothing was redrawn"
    for name, drafter in made.drafters(plain.outputs).items():
        if name.startswith(("oracle", "lm", "heads", "block")):
            drafted = run(made.method(drafter), prompts)
            assert drafted.same(plain), name
            assert drafted.tau > 1.5 or name.startswith(("heads", "block")), name


@pytest.mark.parametrize(("family", "setting"), every_pair(("mistral", "gemma"), ("warped", "greedy")))
def test_sliding_layers_see_what_they_see_in_plain_decoding(lab, run, family, setting):
    made = lab(torch.float32, family)
    prompts = chosen(made.prompts, SETTINGS[setting])
    plain = run(made.method(), prompts)
    for name, drafter in made.drafters(plain.outputs).items():
        assert run(made.method(drafter), prompts).same(plain), name


def test_errors_were_planted_at_every_depth_and_branch(lab, run):
    """What the equality above rests on: the oracle is wrong, and right, everywhere."""
    made = lab()
    plain = run(made.method(), made.prompts)
    oracle = OracleDrafter(dict(enumerate(plain.outputs)), VOCAB, reach=4, width=3, acceptance=0.8, leads=0)
    accepted, rejected = set(), set()

    class Watched(OracleDrafter):
        def observe(self, state, own, outcome):
            for path in outcome.verdict.path.tolist():
                found = [node for node in path if node >= 0]
                accepted.update((node // 3, node % 3) for node in found)
                if len(found) < 4:
                    rejected.add(len(found))

    watched = Watched(**vars(oracle))
    assert run(made.method(watched), made.prompts).same(plain)
    assert accepted == {(depth, branch) for depth in range(4) for branch in range(3)}
    assert rejected == {0, 1, 2, 3}


def test_a_mask_table_by_slot_is_obeyed_and_identical(lab, run):
    """Odd slots of the grammar allow the upper half of the vocabulary, even ones the lower."""
    made = lab()
    ids = torch.arange(VOCAB)
    mask = torch.stack([ids < 30, ids >= 30])
    plain = run(made.method(mask=mask), made.prompts)
    for row in plain.outputs:
        assert ((row >= 30) == (torch.arange(len(row)) % 2 == 1)).all()
    for name, drafter in made.drafters(plain.outputs).items():
        assert run(made.method(drafter, mask=mask), made.prompts).same(plain), name


def test_exact_methods_say_what_plain_decoding_says_at_temperature_0(lab, run):
    """Off the tape too; in fp64, because what they accept is moved and its sums are then in another order."""
    made = lab(torch.float64)
    prompts = chosen(made.prompts, Sampling(temperature=0))
    plain = run(made.method(), prompts)
    for name, (drafter, verifier) in made.judged().items():
        if verifier.guarantee == "exact":
            assert run(made.method(drafter, False, verifier), prompts).same(plain), name
