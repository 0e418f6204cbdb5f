"""Linear layers of a model that stays its owner's, lent and given back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polydraft.core.model.lent_linears import LentLinears, decoder_linears
from polydraft.core.model.linear import PackedLinear, packed_group
from polydraft.core.native.library import library

pytestmark = pytest.mark.skipif(library() is None, reason="the C library is not used")


class Block(nn.Module):
    """Layers named as those that are fused, the third without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(24, 24), nn.Linear(24, 8)
        self.v_proj, self.o_proj = nn.Linear(24, 8), nn.Linear(24, 24, bias=False)


def all_members(linears: LentLinears) -> list[nn.Linear]:
    return [member for group in linears.groups for member in group.members]


def test_layers_are_lent_and_given_back():
    block, head, x = Block(), nn.Linear(24, 90), torch.randn(2, 24)
    before = {name: dict(vars(module)) for name, module in block.named_modules()}
    expected = [module(x) for module in (block.q_proj, block.o_proj, head)]
    linears = LentLinears(decoder_linears(block, head))
    assert len(all_members(linears)) == 5
    with linears, torch.inference_mode():
        assert {type(member) for member in all_members(linears)} == {PackedLinear}
        fused = packed_group([block.q_proj, block.k_proj, block.v_proj])
        assert fused is not None and fused.weight.unpacked()[0].data_ptr() == block.q_proj.weight.data_ptr()
        outputs = [module(x) for module in (block.q_proj, block.o_proj, head)]
    for output, value in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, value.detach())
    assert {name: dict(vars(module)) for name, module in block.named_modules()} == before
    assert {type(module) for module in all_members(linears)} == {nn.Linear}


def test_group_fills_a_missing_bias_with_zeros():
    members, x = [nn.Linear(24, 24), nn.Linear(24, 8, bias=False)], torch.randn(2, 24)
    linears = LentLinears([members])
    with linears, torch.inference_mode():
        for member in members:
            torch.testing.assert_close(member(x), nn.functional.linear(x, member.weight, member.bias))


@pytest.mark.parametrize("change", ["hook", "forward", "layout", "dtype", "class"])
def test_layer_that_computes_otherwise_is_not_lent(change):
    linear = nn.Linear(24, 16)
    if change == "hook":
        linear.register_forward_hook(lambda _module, _inputs, output: output + 1)
    elif change == "forward":
        linear.forward = lambda input: input  # type: ignore[method-assign]
    elif change == "layout":
        linear.weight = nn.Parameter(torch.randn(24, 16).T)
    elif change == "dtype":
        linear.double()
    else:
        linear.__class__ = type("Other", (nn.Linear,), {})
    assert not all_members(LentLinears([[linear]]))


@torch.inference_mode()
def test_lent_layers_follow_weights_that_change():
    linear, x = nn.Linear(24, 16).requires_grad_(False), torch.randn(2, 24)
    linears = LentLinears([[linear]])
    for change in (
        lambda: linear.weight.mul_(3), lambda: linear.bias.add_(1),
        lambda: setattr(linear, "weight", nn.Parameter(torch.randn(16, 24), requires_grad=False)),
    ):  # fmt: skip
        change()
        expected = linear(x)
        with linears:
            torch.testing.assert_close(linear(x), expected)
