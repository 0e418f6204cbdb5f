"""Layers computed without their own forward: taken where a small twin agrees, left to the model where it does not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    ChameleonConfig,
    GemmaConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from polydraft.core.model import layers
from polydraft.core.model.layers import Layers
from polydraft.core.model.proof import check
from polydraft.core.target import CausalTarget

SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
VQ = {"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1}
CHAMELEON = SIZES | {"vocabulary_map": {"<image>": 5}, "vq_config": VQ}
TAKEN = [
    LlamaConfig(**SIZES), LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True), MistralConfig(**SIZES),
    LlamaConfig(**SIZES, rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
    Qwen2Config(**SIZES), Qwen3Config(**SIZES, head_dim=32), ChameleonConfig(**CHAMELEON),
]  # fmt: skip
LEFT = [
    GemmaConfig(**SIZES), GraniteConfig(**SIZES, residual_multiplier=0.5), Olmo2Config(**SIZES),
    SmolLM3Config(**SIZES, pad_token_id=0), ChameleonConfig(**CHAMELEON, swin_norm=True),
]  # fmt: skip


def named(config) -> str:
    return type(config).__name__


@pytest.mark.parametrize("config", TAKEN, ids=named)
def test_layers_of_llamas_kind_are_taken(config):
    assert Layers.of(AutoModel.from_config(config)) is not None


@pytest.mark.parametrize("config", LEFT, ids=named)
def test_layers_of_another_kind_are_left_to_the_model(config):
    """Scaled embeddings and norms, scaled residuals, norms behind, layers without positions."""
    assert Layers.of(AutoModel.from_config(config)) is None


@pytest.mark.parametrize("planted", ["eps", "sign", "order"])
def test_the_twin_shows_what_is_wrong(planted, monkeypatch):
    """A norm's eps, the sign of rotation, and values read as keys: each is seen."""
    monkeypatch.setattr(layers, "tried", {})
    if planted == "eps":
        other = lambda norm: lambda x: F.rms_norm(x, x.shape[-1:], norm.weight, 1e-5)  # noqa: E731
        monkeypatch.setattr(layers, "norm_of", other)
    if planted == "sign":
        monkeypatch.setattr(layers, "turned", lambda cos, sin: (cos[:, :, None], sin[:, :, None]))
    if planted == "order":
        own = layers.Unkept.update
        monkeypatch.setattr(layers.Unkept, "update", lambda *args: own(*args)[::-1])
    assert Layers.of(AutoModel.from_config(LlamaConfig(**SIZES))) is None


@pytest.mark.parametrize("size", [1e-4, 1.0, 300.0])
def test_a_norm_is_the_models_own_but_for_last_bits(size):
    """Also of numbers so small that what keeps norms finite counts, and after a step of training."""
    norm, generator = LlamaRMSNorm(48, eps=1e-6), torch.Generator().manual_seed(0)
    hidden = size * torch.randn(2, 3, 48, generator=generator)
    for dtype, apart in ((torch.float64, 1e-6), (torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)):
        module, given = norm.to(dtype), hidden.to(dtype)
        ours = layers.norm_of(module)
        for _ in range(2):
            torch.nn.init.normal_(module.weight, generator=generator)
            torch.testing.assert_close(ours(given), module(given), rtol=apart, atol=apart)


def test_a_norms_bits_depend_on_no_other_row():
    """Whatever is beside it, and however many."""
    norm, hidden = LlamaRMSNorm(200).bfloat16(), torch.randn(70, 200, generator=torch.Generator().manual_seed(0))
    torch.nn.init.normal_(norm.weight)
    whole = layers.norm_of(norm)(hidden.bfloat16())
    for first, count in ((0, 1), (5, 2), (9, 13), (33, 37)):
        assert torch.equal(layers.norm_of(norm)(hidden[first : first + count].bfloat16()), whole[first : first + count])


@pytest.mark.parametrize("config", [TAKEN[1], TAKEN[3], TAKEN[5]], ids=named)
def test_targets_on_them_say_what_the_model_says(config):
    torch.manual_seed(0)
    target = CausalTarget(AutoModelForCausalLM.from_config(config, dtype=torch.float64))
    assert target.network.layers is not None
    check(target)
