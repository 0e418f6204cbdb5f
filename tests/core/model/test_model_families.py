"""Families that scale logits, use attention windows or stretched positions: equal to `generate`, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers as hf

from polydraft.core.decode import Method
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.errors import InvalidArgument, PolydraftError
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

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


def build_model(family: str, table: dict = FAMILIES):
    torch.manual_seed(0)
    return table[family]().double().eval()


def prompts(budget: int = 12) -> list[PromptInputs]:
    texts = [(1, 2, 3, 4, 5, 6, 9, 17, 3, 30), (1, 9, 6), (7,)]
    return [PromptInputs((text,), budget, sampling_params=SamplingParams(temperature=0)) for text in texts]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate(run, family):
    """In fp64 equality is strict, also with draft trees."""
    model, untouched = build_model(family), build_model(family)
    plain = run(Method("plain", CausalTarget(model), NoDrafter(), SharedNoiseVerifier()), prompts())
    for prompt, ours in zip(prompts(), plain.outputs, strict=True):
        ids = torch.tensor([prompt.branch_token_ids[0]])
        theirs = untouched.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, min_new_tokens=12,
            pad_token_id=0,
        )  # fmt: skip
        assert torch.equal(ours, theirs[0, ids.shape[1] :])
    for width in (1, 3):
        oracle = OracleDrafter(dict(enumerate(plain.outputs)), VOCAB, reach=4, width=width)
        drafted = run(Method("drafted", CausalTarget(model), oracle, SharedNoiseVerifier()), prompts())
        assert drafted.same(plain) and drafted.tau > 1.5


@pytest.mark.parametrize("family", ["granite", "cohere"])
def test_compute_logits_scales_as_the_model(family):
    """Greedy ids would not show the scale, probabilities do."""
    target, untouched = CausalTarget(build_model(family)), build_model(family)
    hidden_states = torch.randn(2, 32, dtype=torch.double)
    expected = untouched(input_ids=torch.tensor([[1, 5, 9]]))
    last_hidden = target.model.model(input_ids=torch.tensor([[1, 5, 9]])).last_hidden_state
    torch.testing.assert_close(target.compute_logits(last_hidden), expected.logits)
    assert not torch.allclose(target.compute_logits(hidden_states), target.model.lm_head(hidden_states))


def test_longrope_limits_context_to_original_length(run):
    """Longrope changes rotary frequencies beyond the original context, so longer requests are refused."""
    target = CausalTarget(build_model("phi3"))
    assert target.context_len == 48
    method = Method("plain", target, NoDrafter(), SharedNoiseVerifier())
    with pytest.raises(InvalidArgument, match="this target holds 48"):
        run(method, prompts(48))
    fits = [replace(prompts()[2], max_new_tokens=47)]
    assert len(run(method, fits).outputs[0]) == 47


@pytest.mark.parametrize("family", REFUSED)
def test_unsupported_architecture_raises_one_sentence(run, family):
    with pytest.raises(PolydraftError, match="polydraft does not compute") as caught:
        run(Method("plain", CausalTarget(build_model(family, REFUSED)), NoDrafter(), SharedNoiseVerifier()), prompts())
    assert type(caught.value).__name__ == "UnsupportedModel" and "\n" not in str(caught.value)
