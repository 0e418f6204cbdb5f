"""Unmodified models decode as transformers' `generate` does, and sampling filters equal its warpers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from polydraft.core.draft import Draft
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.params import SamplingParams, SamplingTensors
from polydraft.core.sampling.sampler import Sampler

from ..conftest import VOCAB, with_sampling


@pytest.mark.parametrize("penalty", [1.0, 1.4])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma"])
def test_greedy_equals_generate(lab, run, family, penalty):
    """Equality is strict in fp64, where there are no near-ties."""
    made = lab(torch.float64, family)
    prompts = with_sampling(made.prompts, SamplingParams(temperature=0, repetition_penalty=penalty))
    plain = run(made.method(), prompts)
    untouched = lab(torch.float64, family).model  # the other model is configured for our attention by now
    for prompt, ours in zip(made.prompts, plain.outputs, strict=True):
        ids = torch.tensor([prompt.branch_token_ids[0]])
        theirs = untouched.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, repetition_penalty=penalty,
            max_new_tokens=prompt.max_new_tokens, min_new_tokens=prompt.max_new_tokens, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        assert torch.equal(ours, theirs[0, ids.shape[1] :])
    oracle = made.drafters(plain.outputs)["oracle tree"]
    drafted = run(made.method(oracle), prompts)
    assert drafted.same(plain) and drafted.tau > 1.5


def test_guidance_combines_two_plain_passes(lab):
    """u + s (c - u), from two separate runs of the model itself."""
    made = lab(torch.float64)
    target, untouched = made.target(guided=True), lab(torch.float64).model
    (prompt,) = with_sampling(made.prompts[:1], guidance=2.5)
    state = target.empty_state()
    with torch.inference_mode():
        target.prefill(state, [prompt])
        scores = target.score(state, Draft.from_chain(torch.tensor([[8, 9, 10]])))
        conditional, unconditional = (
            untouched(torch.tensor([[*branch, 8, 9, 10]])).logits[0, -4:] for branch in prompt.branch_token_ids
        )
    torch.testing.assert_close(
        scores.outputs[0].double(), unconditional + 2.5 * (conditional - unconditional), atol=1e-4, rtol=1e-5
    )


def history(ids: torch.Tensor) -> GenerationContext:
    rows, first = len(ids), torch.zeros(len(ids), 1, dtype=torch.long)
    return GenerationContext(
        ids, torch.full((rows,), ids.shape[1]), ids[:, None, -1:], first, first, torch.full((rows,), 9)
    )


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6), temperature=st.floats(0.3, 2), top_k=st.integers(1, VOCAB),
    top_p=st.floats(0.05, 0.99), min_p=st.floats(0.001, 0.5), penalty=st.floats(0.7, 1.6),
)  # fmt: skip
def test_sampler_filters_equal_transformers_warpers(seed, temperature, top_k, top_p, min_p, penalty):
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
        rows = SamplingTensors.from_params([SamplingParams(**fields)] * 2, "cpu")
        ours = Sampler()(logits[:, None], rows, history(ids)).probs[:, 0]
        expected = theirs(ids, logits.clone()).softmax(-1)
        # a probability exactly at a threshold may fall on either side of it in fp32
        assert ((ours - expected).abs() < 1e-5).all() or (ours > 0).ne(expected > 0).sum() <= 1, fields
