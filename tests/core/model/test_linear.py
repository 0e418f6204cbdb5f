"""Packed linear layers: a row's bits do not depend on the batch, values equal those of plain layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polydraft.core.model.linear import PackedLinear, dense_weight, prepare_linears

SHAPES = [(64, 32), (256, 704), (704, 256), (1024, 300), (1536, 576)]


def is_batch_invariant(inputs: int, outputs: int, dtype: torch.dtype = torch.bfloat16) -> bool:
    """Return whether the first 1 to 64 of 129 rows have the same bits as in the whole batch, for several weights."""
    torch.manual_seed(0)
    for _ in range(4):
        model = nn.Sequential(nn.Linear(inputs, outputs)).to(dtype)
        prepare_linears(model)
        x = torch.randn(3, 43, inputs).to(dtype)
        with torch.inference_mode():
            whole, flat = model(x), x.flatten(0, 1)
            assert whole.shape == (3, 43, outputs)
            if any(not torch.equal(model(flat[:rows]), whole.flatten(0, 1)[:rows]) for rows in range(1, 65)):
                return False
    return True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_packed_linear_rows_are_independent_of_batch(inputs, outputs, dtype):
    assert is_batch_invariant(inputs, outputs, dtype)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_packed_linear_equals_plain_linear(inputs, outputs):
    torch.manual_seed(1)
    layer = nn.Linear(inputs, outputs).bfloat16()
    x = torch.randn(2, 40, inputs).bfloat16()
    expected = nn.functional.linear(x.float(), layer.weight.float(), layer.bias.float())
    prepare_linears(layer)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x).float(), expected, atol=0.02, rtol=0.02)


class Attention(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(48, size, bias=bias) for size in (64, 16, 16))

    def forward(self, x, other):
        return self.q_proj(x), self.k_proj(x), self.v_proj(other), self.k_proj(other), self.q_proj(x)


@pytest.mark.parametrize("bias", [True, False])
def test_fused_members_called_in_any_order_are_right(bias):
    """Members may be called in any order, with the same tensor or another."""
    torch.manual_seed(2)
    model, x, other = Attention(bias).bfloat16(), *torch.randn(2, 2, 5, 48).bfloat16()
    with torch.no_grad():
        expected = model(x, other)
    prepare_linears(model)
    assert model.q_proj.group is model.v_proj.group
    with torch.inference_mode():
        for ours, theirs in zip(model(x, other), expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=0.01, rtol=0.01)
        x.mul_(2)  # the same tensor object with other content
        torch.testing.assert_close(model(x, other)[0], model.q_proj(x.clone()))


def test_packed_linear_without_rows_is_empty():
    model = nn.Sequential(nn.Linear(64, 32))
    prepare_linears(model)
    with torch.inference_mode():
        assert model(torch.zeros(0, 2, 64)).shape == (0, 2, 32)


def test_prepare_linears_unsupported_dtype_is_unchanged():
    model = nn.Sequential(nn.Linear(8, 8), nn.Embedding(4, 8)).double()  # oneDNN has no product of this dtype
    prepare_linears(model)
    assert type(model[0]) is nn.Linear


def test_packed_linear_follows_training():
    layer = nn.Linear(300, 8).bfloat16()
    x = torch.randn(80, 300).bfloat16()
    expected = layer(x).detach()
    prepare_linears(layer)
    assert type(layer) is PackedLinear
    output = layer(x)
    output.float().sum().backward()
    assert torch.equal(output.detach(), expected) and layer.weight.grad is not None
    with torch.no_grad():
        layer.weight.zero_()
    with torch.inference_mode():
        assert torch.equal(layer(x), layer.bias.expand(80, -1)), "stale packed weights"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("bias", [True, False])
def test_dense_weight_of_dropped_weights_is_exact(dtype, bias):
    """Frozen weights are kept packed alone; their outputs and their values stay the same."""
    torch.manual_seed(3)
    model = Attention(bias).to(dtype).requires_grad_(False)
    before = {name: getattr(model, name).weight.clone() for name in ("q_proj", "k_proj", "v_proj")}
    x = torch.randn(2, 5, 48).to(dtype)
    expected = model(x, x)
    prepare_linears(model)
    for name, weight in before.items():
        assert getattr(model, name).weight.is_meta and torch.equal(dense_weight(getattr(model, name)), weight)
    with torch.inference_mode():
        for ours, theirs in zip(model(x, x), expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=0.01, rtol=0.01)
    assert torch.equal(model.q_proj(x), expected[0]), "also outside of inference mode"


def test_prepare_linears_keeps_trainable_and_tied_weights():
    trained, tied = nn.Linear(8, 8).bfloat16(), nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9)).bfloat16()
    tied[1].weight = tied[0].weight
    tied.requires_grad_(False)
    for model in (trained, tied):
        prepare_linears(model)
    assert not trained.weight.is_meta and not tied[1].weight.is_meta
    assert dense_weight(tied[1]).data_ptr() == tied[0].weight.data_ptr()


def test_prepare_linears_patched_layers_are_unchanged():
    """Quantisers replace the forward of plain layers, or remove their weight."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)).requires_grad_(False)
    model[0].forward = lambda given: given + 1  # type: ignore[method-assign]
    del model[1].weight
    prepare_linears(model)
    assert [type(layer) for layer in model] == [nn.Linear, nn.Linear, PackedLinear]
    assert torch.equal(model[0](torch.zeros(1, 16)), torch.ones(1, 16))
