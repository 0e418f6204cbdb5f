"""Weights packed by oneDNN, where the C library is not used: a row's bits do not depend on the batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polydraft.core.model import onednn_weights
from polydraft.core.model.linear import dense_weight, prepare_linears

from .test_linear import is_batch_invariant


@pytest.fixture(autouse=True)
def without_library(monkeypatch):
    monkeypatch.setenv("POLYDRAFT_NATIVE", "0")


@pytest.fixture
def kernel_with_regrouped_sums(monkeypatch):
    """Replace the kernel by one that sums 1 row, and more than 16, in another order."""

    def product(rows, packed, bias=None):
        weight = packed.to_dense()
        rows, shape = rows.reshape(-1, rows.shape[-1]), rows.shape[:-1]
        order = torch.arange(rows.shape[1]) if 1 < len(rows) <= 16 else torch.arange(rows.shape[1]).flip(0)
        sums = rows.new_zeros(len(rows), len(weight))
        for column in order:
            sums += rows[:, column, None] * weight[:, column]
        return (sums if bias is None else sums + bias).view(*shape, -1)

    monkeypatch.setattr(onednn_weights, "packed_linear", product)
    monkeypatch.setattr(onednn_weights, "batch_invariant_rows", onednn_weights.batch_invariant_rows.__wrapped__)


def test_batch_invariant_rows_finds_range_of_kernel(kernel_with_regrouped_sums):
    assert onednn_weights.batch_invariant_rows(24, 64, torch.float32) == (2, 16)
    assert is_batch_invariant(64, 24, torch.float32)


def test_packed_linear_without_blocks_depends_on_batch(kernel_with_regrouped_sums, monkeypatch):
    monkeypatch.setattr(onednn_weights, "batch_invariant_rows", lambda *shape: (1, 10**9))
    assert not is_batch_invariant(64, 24, torch.float32)


def test_packed_linear_without_bf16_rounds_fp32_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors with AVX2 alone pack in fp32: bits do not depend on the batch, and weights are recovered exactly."""
    monkeypatch.setattr(onednn_weights, "packed_dtype", lambda dtype: torch.float32)
    torch.manual_seed(0)
    layer = nn.Linear(96, 40).bfloat16().requires_grad_(False)
    weight, x = layer.weight.clone(), torch.randn(2, 20, 96).bfloat16()
    model = nn.Sequential(layer)
    prepare_linears(model)
    with torch.inference_mode():
        output = model(x)
        expected = nn.functional.linear(x.float(), weight.float(), layer.bias.float()).bfloat16()
        assert output.dtype == torch.bfloat16
        torch.testing.assert_close(output, expected, rtol=2**-7, atol=1e-3)
        alone = torch.stack([model(row[None])[0] for row in x.flatten(0, 1)])
        assert torch.equal(output.flatten(0, 1), alone)
    assert torch.equal(dense_weight(layer), weight)
