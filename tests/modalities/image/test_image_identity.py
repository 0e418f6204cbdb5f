"""The promise on the real model: same seed, same tokens, drafted or not, alone or in a batch, in fp32 and bf16.

Runs are cut to the first tokens of an image; the core's own tests go through every drafter and trick.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from scipy import stats

from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.methods.registry import parse
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load

from ...covering import every_pair
from ...decoding import all_equal, run
from .captions import CAPTIONS

TOKENS = 16


@lru_cache
def loaded(dtype: str) -> ImagePipeline:
    return load("tiny-image", dtype=dtype)


def prompts(pipe: ImagePipeline, sampling: SamplingParams, rows: int, budget: int = TOKENS) -> list[PromptInputs]:
    return [replace(prompt, max_new_tokens=budget) for prompt in pipe.build_prompts(CAPTIONS[:rows], sampling=sampling)]


@pytest.mark.parametrize(
    ("dtype", "temperature", "guidance"), every_pair(("float32", "bfloat16"), (0.0, 1.0), (1.0, 2.0))
)
def test_every_method_draws_what_plain_decoding_draws(dtype: str, temperature: float, guidance: float) -> None:
    pipe = loaded(dtype)
    sampling, guided = SamplingParams(temperature=temperature, guidance_scale=guidance), guidance != 1
    for rows in (1, 5):
        asked = prompts(pipe, sampling, rows)
        plain, _ = run(pipe.method(parse("ar"), guided), asked)
        alone, _ = run(pipe.method(parse("ar"), guided), asked[-1:])
        assert all_equal(alone, plain[-1:]), "a row must not depend on its neighbours"
        names = ["jacobi(window=7)", "jacobi(window=16,init=above)", "pld"]
        if "lm" in pipe.card.drafters:
            names += ["draft(depth=5)", "draft(depth=4,width=2)"]
        if "eagle" in pipe.card.drafters:
            names += ["eagle(nodes=10)", "eagle2(depth=4,width=3,total=10)"]
        for name in names:
            drawn, _ = run(pipe.method(parse(name), guided), asked)
            assert all_equal(drawn, plain), name
        for width in (1, 3):
            method = pipe.method(parse("ar"), guided)
            oracle = OracleDrafter(dict(enumerate(plain)), pipe.target_model.config.vocab_size, 4, width, 0.75)
            drawn, committed = run(replace(method, drafter=oracle), asked)
            assert committed > 1.5 and all_equal(drawn, plain), f"oracle of width {width}"


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_greedy_equals_transformers_generate(guidance: float) -> None:
    """fp64 leaves no near-ties, so equality is strict."""
    pipe = load("tiny-image", dtype="float64")
    row = prompts(pipe, SamplingParams(temperature=0, guidance_scale=guidance), 2)[1]
    method = pipe.method(parse("ar"), guidance != 1)
    plain, _ = run(method, [row])
    oracle = OracleDrafter({0: plain[0]}, method.target.vocab_size, reach=4, width=2, acceptance=0.75)
    drawn, committed = run(replace(method, drafter=oracle), [row])
    length = len(row.branch_token_ids[0])

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        """The grammar, asked for the last id alone."""
        t, known = torch.tensor([[len(ids) - length]]), torch.tensor([len(ids)])
        history = GenerationContext(
            ids[None], known, ids[None, None, -1:], torch.zeros_like(t), t, torch.tensor([row.max_new_tokens])
        )
        return pipe.token_mask[pipe.family.grammar_state(history)[0, 0]].nonzero().flatten().tolist()

    options = (
        {"negative_prompt_ids": torch.tensor([row.branch_token_ids[1]]), "guidance_scale": guidance}
        if guidance > 1
        else {}
    )
    theirs = pipe.target_model.generate(
        torch.tensor([row.branch_token_ids[0]]), do_sample=False, max_new_tokens=TOKENS,
        prefix_allowed_tokens_fn=allowed, **options,
    )[0, length:]  # fmt: skip
    assert torch.equal(plain[0], theirs) and torch.equal(drawn[0], theirs) and committed > 1.5


def test_plain_decoding_follows_the_distribution_over_seeds() -> None:
    """χ² of the first token over 1,000 seeds against the model's distribution, least certain without a prompt."""
    pipe = load("tiny-image", dtype="float32")
    method, rows = pipe.method(parse("ar")), 1000
    prompt = prompts(pipe, SamplingParams(), 1, budget=1)[0]
    asked = [replace(prompt, branch_token_ids=prompt.branch_token_ids[1:], seed=10_000 + row) for row in range(rows)]
    drawn = torch.cat([torch.cat(run(method, asked[first : first + 250])[0]) for first in range(0, rows, 250)])
    with torch.no_grad():
        logits = pipe.target_model(torch.tensor([asked[0].branch_token_ids[0]])).logits[0, -1].double()
    probs = logits.masked_fill(~pipe.token_mask[0], float("-inf")).softmax(-1)
    expected, observed = probs * rows, torch.bincount(drawn, minlength=len(probs)).double()
    common = expected >= 5
    merged = [torch.cat([part[common], part[~common].sum()[None]]) for part in (observed, expected)]
    assert stats.chisquare(merged[0].numpy(), merged[1].numpy() * rows / merged[1].sum().item()).pvalue > 1e-3
