"""bf16 products in training, where the processor computes them faster than fp32 ones."""

from __future__ import annotations

import pytest
import torch

from polydraft.core.model import precision


@pytest.fixture(autouse=True)
def fresh_probe():
    precision.is_bf16_faster.cache_clear()
    yield
    precision.is_bf16_faster.cache_clear()


@pytest.mark.parametrize("seconds_of_bf16, expected", [(1.0, torch.bfloat16), (3.0, torch.float32)])
def test_mixed_precision_faster_dtype_is_used(monkeypatch, seconds_of_bf16, expected):
    monkeypatch.setattr(precision, "has_native_bf16", lambda device: True)
    seconds = {torch.bfloat16: seconds_of_bf16, torch.float32: 2.0}
    monkeypatch.setattr(precision, "time_product", seconds.__getitem__)
    factor = torch.ones(2, 2)
    with precision.mixed_precision():
        assert (factor @ factor).dtype is expected


def test_mixed_precision_without_native_bf16_stays_fp32(monkeypatch):
    monkeypatch.setattr(precision, "has_native_bf16", lambda device: False)
    factor = torch.ones(2, 2)
    with precision.mixed_precision():
        assert (factor @ factor).dtype is torch.float32


def test_time_product_is_positive():
    assert precision.time_product(torch.float32) > 0
