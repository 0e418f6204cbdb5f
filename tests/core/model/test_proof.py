"""What a target's logits show before its results carry a promise: in float64, and with int8 activations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from polydraft.core.drafters.heads.block import BlockNetwork
from polydraft.core.drafters.network.base import FeatureNetwork
from polydraft.core.drafters.network.eagle import EagleNetwork
from polydraft.core.drafters.network.kangaroo import KangarooAdapter, shallow
from polydraft.core.errors import UnsupportedModel
from polydraft.core.model.kernels import end_to_end
from polydraft.core.model.proof import TIES_APART, check, label
from polydraft.core.target import CausalTarget

SHAPE: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "pad_token_id": 0, "initializer_range": 0.3,
}  # fmt: skip


class Int8Linear(nn.Module):
    """A linear layer that rounds what it reads to 8 bits, with a scale for every row or one for all."""

    def __init__(self, own: nn.Linear, one_scale: bool) -> None:
        super().__init__()
        self.own, self.one_scale = own, one_scale

    def forward(self, x: Tensor) -> Tensor:
        scale = (x.abs().amax() if self.one_scale else x.abs().amax(-1, keepdim=True)) / 127
        rounded = (x / scale.clamp(min=1e-9)).round() * scale
        out: Tensor = self.own(rounded)
        return out


def quantised(one_scale: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=3)).eval().requires_grad_(False)
    model.config.quantization_config = {"one_scale": one_scale}  # what is known of a model is remembered by this
    for layer in model.model.layers:
        layer.mlp.down_proj = Int8Linear(layer.mlp.down_proj, one_scale)
        layer.self_attn.o_proj = Int8Linear(layer.self_attn.o_proj, one_scale)
    return model


@pytest.mark.parametrize("guarantee", ["identical", "exact"])
def test_label_of_rows_that_share_a_scale_is_lossy(guarantee: str) -> None:
    assert label(guarantee, CausalTarget(quantised(one_scale=True))) == "lossy"


def test_label_of_rows_with_scales_of_their_own_is_kept() -> None:
    target = CausalTarget(quantised(one_scale=False))
    assert label("identical", target) in ("identical", TIES_APART)
    assert label("exact", target) == "exact" and label("lossy", target) == "lossy"


def test_first_layers_of_an_int8_model_draft() -> None:
    model = quantised(one_scale=False)
    first = shallow(model, 2)
    assert [type(layer.mlp.down_proj) for layer in first.layers] == [Int8Linear] * 2
    check(CausalTarget(model))


def test_check_in_float64_lets_norms_round_to_float32() -> None:
    torch.manual_seed(0)
    deep = LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=48)).double().eval()
    check(CausalTarget(deep))


def test_check_in_float64_sees_what_is_more_than_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    target = CausalTarget(LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=2)).double().eval())
    own = target.own_logits
    monkeypatch.setattr(target, "own_logits", lambda *asked: own(*asked) * torch.linspace(1, 1.002, 60))
    with pytest.raises(UnsupportedModel, match="computes something polydraft does not know"):
        check(target)


@pytest.mark.parametrize("network", [EagleNetwork, KangarooAdapter, BlockNetwork])
def test_drafter_of_experts_runs_in_float64(network: type[FeatureNetwork]) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    model: Any = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, num_hidden_layers=2, **experts)).double().eval()
    model.set_experts_implementation("eager")  # as loading does in float64
    made: Any = network(model.config).double()
    layers = next(part for part in made.modules() if isinstance(part, PreTrainedModel))
    inputs = torch.randn(1, 5, SHAPE["hidden_size"], dtype=torch.float64)
    with torch.inference_mode():
        out = layers(inputs_embeds=inputs, position_ids=torch.arange(5)[None], use_cache=False).last_hidden_state
    assert out.dtype is torch.float64 and out.isfinite().all()


class Stored(torch.Tensor):
    """A weight that says it is float32 and is kept otherwise, as torchao's are."""


def test_weight_of_a_tensor_subclass_is_left_to_its_own_layer() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=2)).eval().requires_grad_(False)
    for layer in model.model.layers:
        for own in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            own.weight = nn.Parameter(own.weight.data.as_subclass(Stored), requires_grad=False)
    target = CausalTarget(model)
    assert all(type(layer.self_attn.q_proj) is nn.Linear for layer in model.model.layers)
    assert end_to_end([model.model.layers[0].self_attn.q_proj, model.model.layers[0].self_attn.k_proj]) is None
    check(target)
