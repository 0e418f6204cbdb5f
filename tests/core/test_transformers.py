"""Unforked models decode as transformers' own `generate` does, and our warpers are its warpers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from polydraft.core.draft import Draft
from polydraft.core.sampling import History, Sampler, Sampling

VOCAB = 61


@pytest.mark.parametrize("penalty", [1.0, 1.4])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma"])
def test_greedy_equals_generate(lab, run, family, penalty):
    """In fp64 there are no near-ties, so equality is strict."""
    made = lab(torch.float64, family)
    sampling = Sampling(temperature=0, repetition_penalty=penalty)
    plain = run(made.method(None, sampling), made.prompts)
    for prompt, ours in zip(made.prompts, plain.outputs, strict=True):
        ids = torch.tensor([prompt.branches[0]])
        theirs = made.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, repetition_penalty=penalty,
            max_new_tokens=prompt.budget, min_new_tokens=prompt.budget, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert torch.equal(ours, theirs[0, ids.shape[1] :])
    oracle = made.drafters(plain.outputs)["oracle tree"]
    drafted = run(made.method(oracle, sampling), made.prompts)
    assert drafted.same(plain) and drafted.tau > 1.5


def test_guidance_is_a_combination_of_two_plain_passes(lab):
    """u + s (c - u), from two separate runs of the model itself."""
    made = lab(torch.float64)
    target = made.target(2.5)
    prompt = made.prompts[0]
    state, _ = target.prefill([prompt], nodes=3)
    scores = target.score(state, Draft.of_chain(torch.tensor([[8, 9, 10]])))
    with torch.no_grad():
        conditional, unconditional = (
            made.model(torch.tensor([[*branch, 8, 9, 10]])).logits[0, -4:] for branch in prompt.branches
        )
    torch.testing.assert_close(
        scores.logits[0].double(), unconditional + 2.5 * (conditional - unconditional), atol=1e-4, rtol=1e-5
    )


def history(ids: torch.Tensor) -> History:
    rows = len(ids)
    root = ids[:, -1:]
    return History(
        ids, torch.ones_like(ids, dtype=torch.bool), root, torch.ones(rows, 1, 1, dtype=torch.bool),
        torch.zeros(rows, 1, dtype=torch.long),
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    seed=some.integers(0, 10**6), temperature=some.floats(0.3, 2), top_k=some.integers(1, VOCAB),
    top_p=some.floats(0.05, 0.99), min_p=some.floats(0.001, 0.5), penalty=some.floats(0.7, 1.6),
)  # fmt: skip
def test_every_warper_agrees_with_transformers(seed, temperature, top_k, top_p, min_p, penalty):
    torch.manual_seed(seed)
    logits, ids = 3 * torch.randn(2, VOCAB), torch.randint(VOCAB, (2, 7))
    pairs = [
        ({"repetition_penalty": penalty}, RepetitionPenaltyLogitsProcessor(penalty)),
        ({"temperature": temperature}, TemperatureLogitsWarper(temperature)),
        ({"top_k": top_k}, TopKLogitsWarper(top_k)),
        ({"top_p": top_p}, TopPLogitsWarper(top_p)),
        ({"min_p": min_p}, MinPLogitsWarper(min_p)),
    ]
    for fields, theirs in pairs:
        ours = Sampler(Sampling(**fields))(logits[:, None], history(ids))[:, 0].exp()
        expected = theirs(ids, logits.clone()).softmax(-1)
        # a probability exactly at a threshold may fall on either side of it in fp32
        assert ((ours - expected).abs() < 1e-5).all() or (ours > 0).ne(expected > 0).sum() <= 1, fields
