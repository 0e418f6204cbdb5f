"""One order of summation: a position's bits are the same in a pass of one and in a pass of a hundred."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polydraft.core.model import kernels
from polydraft.core.model.kernels import InferenceLinear, prepare, weight_of

SHAPES = [(64, 32), (256, 704), (704, 256), (1024, 300), (1536, 576)]


def stable(inputs: int, outputs: int, dtype: torch.dtype = torch.bfloat16) -> bool:
    """Whether a row's result is the same whatever rows are beside it: 1 to 64 of 129, over several draws."""
    torch.manual_seed(0)
    for _ in range(4):
        model = nn.Sequential(nn.Linear(inputs, outputs)).to(dtype)
        prepare(model)
        x = torch.randn(3, 43, inputs).to(dtype)
        with torch.inference_mode():
            whole, flat = model(x), x.flatten(0, 1)
            assert whole.shape == (3, 43, outputs)
            if any(not torch.equal(model(flat[:rows]), whole.flatten(0, 1)[:rows]) for rows in range(1, 65)):
                return False
    return True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_rows_do_not_feel_their_neighbours(inputs, outputs, dtype):
    assert stable(inputs, outputs, dtype)


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


def test_of_no_rows_there_is_nothing():
    model = nn.Sequential(nn.Linear(64, 32))
    prepare(model)
    with torch.inference_mode():
        assert model(torch.zeros(0, 2, 64)).shape == (0, 2, 32)


def test_other_layers_are_left_alone():
    model = nn.Sequential(nn.Linear(8, 8), nn.Embedding(4, 8)).double()  # of a type that oneDNN has no product for
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


@pytest.fixture
def regrouping(monkeypatch):
    """A kernel that sums 1 row, and more than 16, in another order."""

    def product(rows, packed, bias=None):
        weight = packed.to_dense()
        rows, shape = rows.reshape(-1, rows.shape[-1]), rows.shape[:-1]
        order = torch.arange(rows.shape[1]) if 1 < len(rows) <= 16 else torch.arange(rows.shape[1]).flip(0)
        sums = rows.new_zeros(len(rows), len(weight))
        for column in order:
            sums += rows[:, column, None] * weight[:, column]
        return (sums if bias is None else sums + bias).view(*shape, -1)

    monkeypatch.setattr(kernels, "product", product)
    monkeypatch.setattr(kernels, "alike", kernels.alike.__wrapped__)


def test_what_is_summed_alike_is_found_out(regrouping):
    assert kernels.alike(24, 64, torch.float32) == (2, 16)
    assert stable(64, 24, torch.float32)


def test_without_blocks_rows_would_feel_their_neighbours(regrouping, monkeypatch):
    monkeypatch.setattr(kernels, "alike", lambda *shape: (1, 10**9))
    assert not stable(64, 24, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("bias", [True, False])
def test_released_weights_are_recovered_exactly(dtype, bias):
    """Those that nobody trains are kept packed alone; what they compute and what they were stay the same."""
    torch.manual_seed(3)
    model = Attention(bias).to(dtype).requires_grad_(False)
    before = {name: getattr(model, name).weight.clone() for name in ("q_proj", "k_proj", "v_proj")}
    x = torch.randn(2, 5, 48).to(dtype)
    expected = model(x, x)
    prepare(model)
    for name, weight in before.items():
        assert getattr(model, name).weight.is_meta and torch.equal(weight_of(getattr(model, name)), weight)
    with torch.inference_mode():
        for ours, theirs in zip(model(x, x), expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=0.01, rtol=0.01)
    assert torch.equal(model.q_proj(x), expected[0]), "outside of inference too"


def test_weights_that_are_trained_or_tied_are_kept():
    trained, tied = nn.Linear(8, 8).bfloat16(), nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9)).bfloat16()
    tied[1].weight = tied[0].weight
    tied.requires_grad_(False)
    for model in (trained, tied):
        prepare(model)
    assert not trained.weight.is_meta and not tied[1].weight.is_meta
    assert weight_of(tied[1]).data_ptr() == tied[0].weight.data_ptr()


def test_layers_that_do_more_than_their_class_says_are_left_alone():
    """Quantisers put another forward on plain layers, or take their weight away."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)).requires_grad_(False)
    model[0].forward = lambda given: given + 1  # type: ignore[method-assign]
    del model[1].weight
    prepare(model)
    assert [type(layer) for layer in model] == [nn.Linear, nn.Linear, InferenceLinear]
    assert torch.equal(model[0](torch.zeros(1, 16)), torch.ones(1, 16))


def test_where_bf16_is_not_multiplied_products_are_those_of_fp32_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on processors with AVX2 alone: same bits for any number of rows, and the weights come back as they were."""
    monkeypatch.setattr(kernels, "laid_out", lambda dtype: torch.float32)
    torch.manual_seed(0)
    layer = nn.Linear(96, 40).bfloat16().requires_grad_(False)
    weight, x = layer.weight.clone(), torch.randn(2, 20, 96).bfloat16()
    model = nn.Sequential(layer)
    kernels.prepare(model)
    with torch.inference_mode():
        made = model(x)
        right = nn.functional.linear(x.float(), weight.float(), layer.bias.float()).bfloat16()
        assert made.dtype == torch.bfloat16
        torch.testing.assert_close(made, right, rtol=2**-7, atol=1e-3)
        alone = torch.stack([model(row[None])[0] for row in x.flatten(0, 1)])
        assert torch.equal(made.flatten(0, 1), alone)
    assert torch.equal(kernels.weight_of(layer), weight)
