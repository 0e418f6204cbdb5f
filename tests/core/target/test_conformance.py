"""Conformance checks of targets, in float64 and with int8 activations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from polydraft.core.drafters.heads.block import BlockModel
from polydraft.core.drafters.network.base import DrafterModel
from polydraft.core.drafters.network.eagle import EagleModel
from polydraft.core.drafters.network.early_exit import KangarooAdapter, truncate_backbone
from polydraft.core.errors import UnsupportedModel
from polydraft.core.model.linear import contiguous_weight_and_bias
from polydraft.core.target.causal import CausalTarget
from polydraft.core.target.conformance import EXACT_UP_TO_TIES, check_logits_match_model, effective_guarantee

SHAPE: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "pad_token_id": 0, "initializer_range": 0.3,
}  # fmt: skip


class Int8Linear(nn.Module):
    """Linear layer with inputs rounded to 8 bits, with one scale per row or one for all."""

    def __init__(self, inner: nn.Linear, one_scale: bool) -> None:
        super().__init__()
        self.inner, self.one_scale = inner, one_scale

    def forward(self, x: Tensor) -> Tensor:
        scale = (x.abs().amax() if self.one_scale else x.abs().amax(-1, keepdim=True)) / 127
        rounded = (x / scale.clamp(min=1e-9)).round() * scale
        out: Tensor = self.inner(rounded)
        return out


def build_int8_model(one_scale: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=3)).eval().requires_grad_(False)
    model.config.quantization_config = {"one_scale": one_scale}  # part of the key of measured guarantees
    for layer in model.model.layers:
        layer.mlp.down_proj = Int8Linear(layer.mlp.down_proj, one_scale)
        layer.self_attn.o_proj = Int8Linear(layer.self_attn.o_proj, one_scale)
    return model


@pytest.mark.parametrize("guarantee", ["identical", "exact"])
def test_effective_guarantee_with_shared_scale_is_lossy(guarantee: str) -> None:
    assert effective_guarantee(guarantee, CausalTarget(build_int8_model(one_scale=True))) == "lossy"


def test_effective_guarantee_with_scale_per_row_is_kept() -> None:
    target = CausalTarget(build_int8_model(one_scale=False))
    assert effective_guarantee("identical", target) in ("identical", EXACT_UP_TO_TIES)
    assert effective_guarantee("exact", target) == "exact" and effective_guarantee("lossy", target) == "lossy"


def test_check_logits_truncated_int8_model_passes() -> None:
    model = build_int8_model(one_scale=False)
    first = truncate_backbone(model, 2)
    assert [type(layer.mlp.down_proj) for layer in first.layers] == [Int8Linear] * 2
    check_logits_match_model(CausalTarget(model))


def test_check_logits_float64_allows_float32_norms() -> None:
    torch.manual_seed(0)
    deep = LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=48)).double().eval()
    check_logits_match_model(CausalTarget(deep))


def test_check_logits_float64_detects_scaled_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    target = CausalTarget(LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=2)).double().eval())
    honest = target.reference_logits
    monkeypatch.setattr(target, "reference_logits", lambda *args: honest(*args) * torch.linspace(1, 1.002, 60))
    with pytest.raises(UnsupportedModel, match="computes something polydraft does not know"):
        check_logits_match_model(target)


@pytest.mark.parametrize("network", [EagleModel, KangarooAdapter, BlockModel])
def test_drafter_of_expert_model_runs_in_float64(network: type[DrafterModel]) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    model: Any = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, num_hidden_layers=2, **experts)).double().eval()
    model.set_experts_implementation("eager")  # as loading does in float64
    made: Any = network(model.config).double()
    layers = next(part for part in made.modules() if isinstance(part, PreTrainedModel))
    inputs = torch.randn(1, 5, SHAPE["hidden_size"], dtype=torch.float64)
    with torch.inference_mode():
        out = layers(inputs_embeds=inputs, position_ids=torch.arange(5)[None], use_cache=False).last_hidden_state
    assert out.dtype is torch.float64 and out.isfinite().all()


class SubclassedWeight(torch.Tensor):
    """Weight that appears to be float32 but is stored otherwise, as torchao's are."""


def test_tensor_subclass_weight_stays_plain_linear() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=2)).eval().requires_grad_(False)
    for layer in model.model.layers:
        for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            linear.weight = nn.Parameter(linear.weight.data.as_subclass(SubclassedWeight), requires_grad=False)
    target = CausalTarget(model)
    assert all(type(layer.self_attn.q_proj) is nn.Linear for layer in model.model.layers)
    assert (
        contiguous_weight_and_bias([model.model.layers[0].self_attn.q_proj, model.model.layers[0].self_attn.k_proj])
        is None
    )
    check_logits_match_model(target)
