"""One order of summation: a position's bits are the same in a pass of one and in a pass of a hundred."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polydraft.core.kernels import WHOLE, BlockedLinear, fix_order


@pytest.mark.parametrize(("inputs", "outputs"), [(64, 32), (256, 704), (704, 256), (1024, 300)])
def test_rows_do_not_feel_their_neighbours(inputs, outputs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(inputs, outputs)).bfloat16()
    fix_order(model)
    assert (type(model[0]) is BlockedLinear) == (inputs > WHOLE)
    x = torch.randn(3, 43, inputs).bfloat16()
    with torch.inference_mode():
        whole = model(x)
        assert whole.shape == (3, 43, outputs)
        for rows in (1, 2, 5, 17, 33):
            assert torch.equal(model(x[1:2, :rows]), whole[1:2, :rows])


def test_other_layers_are_left_alone():
    model = nn.Sequential(nn.Linear(8, 8), nn.Embedding(4, 8))
    fix_order(model)
    assert type(model[0]) is nn.Linear


def test_training_goes_on_as_before():
    layer = nn.Sequential(nn.Linear(300, 8)).bfloat16()
    x = torch.randn(80, 300).bfloat16()
    expected = layer(x).detach()
    fix_order(layer)
    output = layer(x)
    output.float().sum().backward()
    assert torch.equal(output.detach(), expected) and layer[0].weight.grad is not None
