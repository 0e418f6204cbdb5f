"""Triton kernels equal torch, and a row's bits do not depend on other rows or on hidden keys.

Without a GPU they run in Triton's interpreter, where numpy decides on the order of sums:
TRITON_INTERPRET=1 python -m pytest tests/core/model/test_triton_ops.py
"""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.model import triton_ops
from polydraft.core.model.linear import contiguous_weight_and_bias, make_contiguous

CUDA = torch.cuda.is_available()
DEVICE, DTYPE, APART = ("cuda", torch.bfloat16, 4e-3) if CUDA else ("cpu", torch.float32, 1e-6)
kernels = pytest.mark.skipif(
    triton_ops.triton is None or not (CUDA or os.environ.get("TRITON_INTERPRET")),
    reason="there is neither a GPU nor Triton's interpreter",
)


def random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, DTYPE)


def is_close(found: Tensor, wanted: Tensor) -> bool:
    return bool((found.double() - wanted).norm() <= APART * wanted.norm())


@kernels
@pytest.mark.parametrize(("outputs", "inputs"), [(130, 208), (48, 64), (8200, 144)])
@pytest.mark.parametrize("biased", [True, False])
def test_linear_equals_torch(outputs, inputs, biased):
    weight, bias, x = (
        random_tensor(outputs, inputs),
        random_tensor(outputs) if biased else None,
        random_tensor(70, inputs),
    )
    found = triton_ops.linear(x.view(2, 35, -1), weight, bias).view(70, -1)
    assert is_close(found, F.linear(x.double(), weight.double(), None if bias is None else bias.double()))
    assert triton_ops.linear(x[:0], weight, bias).shape == (0, outputs)
    if CUDA:
        assert all(torch.equal(triton_ops.linear(x[:rows], weight, bias), found[:rows]) for rows in (1, 2, 16, 17, 64))


@kernels
@pytest.mark.parametrize(
    ("rows", "heads", "shared", "columns", "size", "width"), [(2, 4, 2, 5, 16, 512), (1, 3, 1, 1, 24, 384)]
)
def test_attention_equals_torch(monkeypatch, rows, heads, shared, columns, size, width):
    groups, query = heads // shared, random_tensor(rows, columns, heads, size).transpose(1, 2)
    stores = random_tensor(2, rows, shared, width + 128, size)
    visible = torch.rand(rows, columns, width, generator=torch.Generator().manual_seed(1)).to(DEVICE) < 0.4
    visible[..., 0], visible[..., width - 200 :] = True, False
    mask = F.pad(torch.where(visible, 0.0, -torch.inf).to(DTYPE).repeat(1, groups, 1), (0, 0, 0, 3))[:, None]
    found = triton_ops.attention(query, *stores[:, :, :, :width], mask, None)
    keys, values = stores[:, :, :, :width].double().repeat_interleave(groups, 2)
    hidden = torch.where(visible, 0.0, -torch.inf).double()[:, None]
    wanted = F.scaled_dot_product_attention(query.double(), keys, values, attn_mask=hidden).transpose(1, 2)
    assert found.shape == (rows, columns, heads, size) and is_close(found, wanted)
    monkeypatch.setattr(triton_ops, "MAX_WORKSPACE_BYTES", 1)
    assert torch.equal(triton_ops.attention(query, *stores[:, :, :, :width], mask, None), found), "row by row"
    if rows > 1:
        shared_mask = triton_ops.attention(query, *stores[:, :, :, :width], mask[:1], None)
        assert torch.equal(shared_mask[0], found[0]), "one mask for all rows"
    wider = F.pad(mask, (0, 128), value=-torch.inf)
    assert torch.equal(triton_ops.attention(query, *stores, wider, None), found), "hidden keys must not change bits"
    if CUDA:
        first_mask = mask[:1, :, : groups * columns].unflatten(2, (groups, columns))[:, :, :, :1].flatten(2, 3)
        alone = triton_ops.attention(query[:1, :, :1], *stores[:, :1, :, :width], first_mask, None)
        assert torch.equal(alone[0, 0], found[0, 0])


@kernels
def test_norm_and_activation_equal_torch():
    hidden, more, weight = random_tensor(3, 5, 72), random_tensor(3, 5, 72).flip(0), random_tensor(72)
    total, normed = triton_ops.residual_rms_norm(hidden, more, weight, 1e-5)
    assert torch.equal(total, hidden + more)
    assert is_close(normed, F.rms_norm(total.double(), (72,), weight.double(), 1e-5))
    assert is_close(
        triton_ops.residual_rms_norm(hidden, None, weight, 1e-5)[1],
        F.rms_norm(hidden.double(), (72,), weight.double(), 1e-5),
    )
    gate, up = hidden.double().chunk(2, -1)
    assert is_close(triton_ops.silu_and_mul(hidden), F.silu(gate) * up)


@kernels
def test_rotary_kv_update_rotates_and_writes():
    rows, columns, asking, shared, size, slots = 2, 3, 4, 2, 16, 11
    heads, (cos, sin) = (
        random_tensor(rows, columns, asking + 2 * shared, size),
        random_tensor(2, rows, columns, 1, size),
    )
    places = torch.arange(rows * shared, device=DEVICE)[:, None] * slots + torch.tensor([4, 7, 2], device=DEVICE)
    keys, values = torch.zeros(2, rows * shared * slots, size, device=DEVICE, dtype=DTYPE)
    stores = keys, values, places.flatten()
    queries = triton_ops.rotary_kv_update(
        heads[:, :, : asking + shared], heads[:, :, asking + shared :], (cos, sin), stores
    )
    turning = heads[:, :, : asking + shared].double()
    wanted = turning * cos.double() + turning.roll(size // 2, -1) * sin.double()
    assert is_close(queries, wanted[:, :, :asking])
    assert is_close(keys[places], wanted[:, :, asking:].transpose(1, 2).flatten(0, 1))
    assert torch.equal(values[places], heads[:, :, asking + shared :].transpose(1, 2).flatten(0, 1))
    assert not values.index_fill(0, places.flatten(), 0).any()


@kernels
def test_rotary_kv_update_zeroes_nonfinite_entries():
    heads, (cos, sin) = random_tensor(2, 1, 6, 16), random_tensor(2, 2, 1, 1, 16)
    heads[0, 0, 4, 3], heads[0, 0, 5, 9], heads[0, 0, 5, 2] = torch.nan, torch.inf, torch.nan
    stores = *torch.ones(2, 2, 16, device=DEVICE, dtype=DTYPE), torch.arange(2, device=DEVICE)
    triton_ops.rotary_kv_update(heads[:, :, :5], heads[:, :, 5:], (cos, sin), stores)
    assert stores[0].isfinite().all() and stores[1].isfinite().all()
    assert not stores[0][0, [3, 11]].any() and torch.equal(stores[1][0], heads[0, 0, 5].nan_to_num(0, 0, 0))
    assert torch.equal(stores[1][1], heads[1, 0, 5])


@pytest.mark.parametrize("biased", [True, False])
def test_make_contiguous_weights_are_slices_of_one(biased):
    members = [nn.Linear(8, size, bias=biased) for size in (6, 2, 2)]
    x, weights = torch.randn(3, 8), [member.weight.clone() for member in members]
    expected = torch.cat([member(x) for member in members], -1)
    assert contiguous_weight_and_bias(members) is None
    make_contiguous(members)
    whole = contiguous_weight_and_bias(members)
    assert whole is not None and whole[0].data_ptr() == members[0].weight.data_ptr()
    torch.testing.assert_close(F.linear(x, *whole), expected)
    assert all(torch.equal(member.weight, weight) for member, weight in zip(members, weights, strict=True))
    assert (
        contiguous_weight_and_bias(members[::-1]) is None
        and contiguous_weight_and_bias([members[0], nn.Linear(8, 2, bias=biased)]) is None
    )
