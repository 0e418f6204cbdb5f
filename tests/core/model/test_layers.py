"""Fused decoder layers: used where a small twin agrees with the model's own forward, else the model runs itself."""

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
from polydraft.core.model.layers import FusedDecoder
from polydraft.core.target.causal import CausalTarget
from polydraft.core.target.conformance import check_logits_match_model

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


def config_name(config) -> str:
    return type(config).__name__


@pytest.mark.parametrize("config", TAKEN, ids=config_name)
def test_from_backbone_llama_style_is_supported(config):
    assert FusedDecoder.from_backbone(AutoModel.from_config(config)) is not None


@pytest.mark.parametrize("config", LEFT, ids=config_name)
def test_from_backbone_other_layers_return_none(config):
    """Scaled embeddings and norms, scaled residuals, post-norms, layers without positions."""
    assert FusedDecoder.from_backbone(AutoModel.from_config(config)) is None


@pytest.mark.parametrize("planted", ["eps", "sign", "order"])
def test_from_backbone_planted_bug_returns_none(planted, monkeypatch):
    """A wrong epsilon, a wrong sign of rotation, and swapped keys and values are each detected."""
    monkeypatch.setattr(layers, "matches_by_config", {})
    if planted == "eps":
        other = lambda norm: lambda x: F.rms_norm(x, x.shape[-1:], norm.weight, 1e-5)  # noqa: E731
        monkeypatch.setattr(layers, "rms_norm_fn", other)
    if planted == "sign":
        monkeypatch.setattr(layers, "signed_rotary_angles", lambda cos, sin: (cos[:, :, None], sin[:, :, None]))
    if planted == "order":
        honest = layers.NoOpCache.update
        monkeypatch.setattr(layers.NoOpCache, "update", lambda *args: honest(*args)[::-1])
    assert FusedDecoder.from_backbone(AutoModel.from_config(LlamaConfig(**SIZES))) is None


@pytest.mark.parametrize("size", [1e-4, 1.0, 300.0])
def test_rms_norm_fn_equals_llama_norm(size):
    """Also for numbers so small that epsilon matters, and after a change of the weight."""
    norm, generator = LlamaRMSNorm(48, eps=1e-6), torch.Generator().manual_seed(0)
    hidden = size * torch.randn(2, 3, 48, generator=generator)
    for dtype, apart in ((torch.float64, 1e-6), (torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)):
        module, given = norm.to(dtype), hidden.to(dtype)
        ours = layers.rms_norm_fn(module)
        for _ in range(2):
            torch.nn.init.normal_(module.weight, generator=generator)
            torch.testing.assert_close(ours(given), module(given), rtol=apart, atol=apart)


def test_rms_norm_fn_bits_are_independent_of_batch():
    """A row's bits do not depend on other rows or their number."""
    norm, hidden = LlamaRMSNorm(200).bfloat16(), torch.randn(70, 200, generator=torch.Generator().manual_seed(0))
    torch.nn.init.normal_(norm.weight)
    expected = layers.rms_norm_fn(norm)(hidden.bfloat16())
    for first, count in ((0, 1), (5, 2), (9, 13), (33, 37)):
        assert torch.equal(
            layers.rms_norm_fn(norm)(hidden[first : first + count].bfloat16()), expected[first : first + count]
        )


@pytest.mark.parametrize("config", [TAKEN[1], TAKEN[3], TAKEN[5]], ids=config_name)
def test_target_with_fused_layers_matches_model(config):
    torch.manual_seed(0)
    target = CausalTarget(AutoModelForCausalLM.from_config(config, dtype=torch.float64))
    assert target.network.fused_layers is not None
    check_logits_match_model(target)
