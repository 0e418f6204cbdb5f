"""One order of summation: a position's bits are the same in a pass of one and in a pass of a hundred."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from polydraft.core import kernels
from polydraft.core.kernels import InferenceLinear, prepare
from polydraft.core.network import Network
from polydraft.core.target import NARROWEST
from polydraft.modalities.loading import native_bf16

SHAPES = [(64, 32), (256, 704), (704, 256), (1024, 300)]


def stable(inputs: int, outputs: int) -> bool:
    """Whether a row's result is the same whatever rows are beside it, over several draws."""
    torch.manual_seed(0)
    for _ in range(8):
        model = nn.Sequential(nn.Linear(inputs, outputs)).bfloat16()
        prepare(model)
        x = torch.randn(3, 43, inputs).bfloat16()
        with torch.inference_mode():
            whole = model(x)
            assert whole.shape == (3, 43, outputs)
            if any(not torch.equal(model(x[1:2, :rows]), whole[1:2, :rows]) for rows in (1, 2, 5, 17, 33)):
                return False
    return True


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_rows_do_not_feel_their_neighbours(inputs, outputs):
    assert stable(inputs, outputs)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_values_are_those_of_the_plain_layer(inputs, outputs):
    torch.manual_seed(1)
    layer = nn.Linear(inputs, outputs).bfloat16()
    x = torch.randn(2, 40, inputs).bfloat16()
    expected = nn.functional.linear(x.float(), layer.weight.float(), layer.bias.float())
    prepare(layer)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x).float(), expected, atol=0.02, rtol=0.02)


class Attention(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(48, size, bias=bias) for size in (64, 16, 16))

    def forward(self, x, other):
        return self.q_proj(x), self.k_proj(x), self.v_proj(other), self.k_proj(other), self.q_proj(x)


@pytest.mark.parametrize("bias", [True, False])
def test_layers_computed_at_once_still_answer_for_themselves(bias):
    """Called in any order, with the same tensor or another."""
    torch.manual_seed(2)
    model, x, other = Attention(bias).bfloat16(), *torch.randn(2, 2, 5, 48).bfloat16()
    with torch.no_grad():
        expected = model(x, other)
    prepare(model)
    assert model.q_proj.product is model.v_proj.product
    with torch.inference_mode():
        for ours, theirs in zip(model(x, other), expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=0.01, rtol=0.01)
        x.mul_(2)  # the same tensor object with other content
        torch.testing.assert_close(model(x, other)[0], model.q_proj(x.clone()))


def test_other_layers_are_left_alone():
    model = nn.Sequential(nn.Linear(8, 8), nn.Embedding(4, 8))
    prepare(model)
    assert type(model[0]) is nn.Linear


def test_training_goes_on_and_inference_follows_it():
    layer = nn.Linear(300, 8).bfloat16()
    x = torch.randn(80, 300).bfloat16()
    expected = layer(x).detach()
    prepare(layer)
    assert type(layer) is InferenceLinear
    output = layer(x)
    output.float().sum().backward()
    assert torch.equal(output.detach(), expected) and layer.weight.grad is not None
    with torch.no_grad():
        layer.weight.zero_()
    with torch.inference_mode():
        assert torch.equal(layer(x), layer.bias.expand(80, -1)), "stale packed weights"


def test_without_blocks_rows_would_feel_their_neighbours(monkeypatch):
    """What the blocks are for, on processors whose kernel regroups; elsewhere there is nothing to cut."""
    monkeypatch.setattr(kernels, "WHOLE", 10**9)
    if torch.cpu._is_amx_tile_supported():
        assert not stable(1024, 300)


def strangers(narrowest: int, widths: range) -> set[int]:
    """Widths of a pass in which a query's attention is other than among 96 queries, padded as targets pad."""
    torch.manual_seed(5)
    heads, size, slots, found = 5, 32, 512, set()
    network = Network(nn.Linear(1, 1), LlamaConfig(), capacity=slots, narrowest=narrowest)
    for _ in range(60):
        q, k, v = (2 * torch.randn(1, heads, length, size).bfloat16() for length in (96, slots, slots))
        mask = torch.full((1, 1, 96, slots), -torch.inf).bfloat16()
        mask[..., : int(torch.randint(70, 300, ()))] = 0
        attend = nn.functional.scaled_dot_product_attention
        whole = attend(q, k, v, attn_mask=mask)
        for width in widths:
            wide = network.widened(width)
            alone = attend(q[:, :, :wide], k, v, attn_mask=mask[:, :, :wide])[:, :, :width]
            if not torch.equal(alone, whole[:, :, :width]):
                found.add(width)
    return found


def test_queries_do_not_feel_how_many_there_are():
    """In bf16 sums over keys depend on it below four, and what is left after blocks of 32 counts for itself."""
    assert not strangers(NARROWEST, range(1, 41))


@pytest.mark.skipif(not native_bf16(torch.device("cpu")), reason="other processors may sum few queries in one order")
def test_too_few_queries_would_show():
    assert strangers(1, range(1, 41)) & {1, 2, 3, 33, 34, 35}
