"""Families that scale their logits, chunk or stretch their positions: `generate` says the same, or they are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers as hf

from polydraft.core.decode import Method
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.errors import InvalidArgument, PolydraftError
from polydraft.core.law.sampling import Sampling
from polydraft.core.target import CausalTarget, Prompt
from polydraft.core.verify.tape import TapeVerifier

from ..conftest import SIZES, VOCAB

IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
STRETCH = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 48,
           "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}  # fmt: skip
FAMILIES = {
    "granite": lambda: hf.GraniteForCausalLM(
        hf.GraniteConfig(**SIZES, **IDS, logits_scaling=3.0, residual_multiplier=0.7, embedding_multiplier=2.0)
    ),
    "cohere": lambda: hf.CohereForCausalLM(hf.CohereConfig(**SIZES, **IDS, logit_scale=0.3)),
    "cohere2": lambda: hf.Cohere2ForCausalLM(
        hf.Cohere2Config(
            **SIZES, **IDS, logit_scale=0.3, sliding_window=6,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        )
    ),
    "phi3": lambda: hf.Phi3ForCausalLM(
        hf.Phi3Config(
            **(SIZES | {"max_position_embeddings": 256}), **IDS, rope_parameters=STRETCH,
            original_max_position_embeddings=48,
        )
    ),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES, **IDS)),
}  # fmt: skip
REFUSED = {
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**SIZES, **IDS, query_pre_attn_scalar=16)),
    "qwen3-next": lambda: hf.Qwen3NextForCausalLM(
        hf.Qwen3NextConfig(
            **SIZES, **IDS, layer_types=["linear_attention", "linear_attention", "full_attention"], num_experts=0,
            linear_num_value_heads=2, linear_num_key_heads=1, linear_key_head_dim=8, linear_value_head_dim=8,
        )
    ),
}  # fmt: skip


def made(family: str, table: dict = FAMILIES):
    torch.manual_seed(0)
    return table[family]().double().eval()


def prompts(budget: int = 12) -> list[Prompt]:
    texts = [(1, 2, 3, 4, 5, 6, 9, 17, 3, 30), (1, 9, 6), (7,)]
    return [Prompt((text,), budget, sampling=Sampling(temperature=0)) for text in texts]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate(run, family):
    """In fp64, strictly; drafted trees say the same."""
    model, untouched = made(family), made(family)
    plain = run(Method("plain", CausalTarget(model), NoDrafter(), TapeVerifier()), prompts())
    for prompt, ours in zip(prompts(), plain.outputs, strict=True):
        ids = torch.tensor([prompt.branches[0]])
        theirs = untouched.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, min_new_tokens=12,
            pad_token_id=0,
        )  # fmt: skip
        assert torch.equal(ours, theirs[0, ids.shape[1] :])
    for width in (1, 3):
        oracle = OracleDrafter(dict(enumerate(plain.outputs)), VOCAB, reach=4, width=width)
        drafted = run(Method("drafted", CausalTarget(model), oracle, TapeVerifier()), prompts())
        assert drafted.same(plain) and drafted.tau > 1.5


@pytest.mark.parametrize("family", ["granite", "cohere"])
def test_the_scale_of_logits_counts(family):
    """Greedy ids would not show it: the law does."""
    target, untouched = CausalTarget(made(family)), made(family)
    features = torch.randn(2, 32, dtype=torch.double)
    whole = untouched(input_ids=torch.tensor([[1, 5, 9]]))
    own = target.model.model(input_ids=torch.tensor([[1, 5, 9]])).last_hidden_state
    torch.testing.assert_close(target.head(own), whole.logits)
    assert not torch.allclose(target.head(features), target.model.lm_head(features))


def test_rows_stay_where_rotary_frequencies_stay(run):
    """Longrope changes them beyond the original context; nothing that long is begun."""
    target = CausalTarget(made("phi3"))
    assert target.context == 48
    method = Method("plain", target, NoDrafter(), TapeVerifier())
    with pytest.raises(InvalidArgument, match="this target holds 48"):
        run(method, prompts(48))
    fits = [replace(prompts()[2], budget=47)]
    assert len(run(method, fits).outputs[0]) == 47


@pytest.mark.parametrize("family", REFUSED)
def test_what_is_not_computed_is_refused_in_one_sentence(run, family):
    with pytest.raises(PolydraftError, match="polydraft does not compute") as caught:
        run(Method("plain", CausalTarget(made(family, REFUSED)), NoDrafter(), TapeVerifier()), prompts())
    assert type(caught.value).__name__ == "UnsupportedModel" and "\n" not in str(caught.value)
