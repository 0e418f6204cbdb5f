"""Native bf16 support, and mixed-precision training.

with mixed_precision(device):
    hidden = model(ids)    # matrix products in bf16 where that is faster, in fp32 elsewhere

A processor without bf16 products takes eight times as long in bf16 as in fp32 (AMD Zen 3: 6 and 53 GFLOP/s a core).
"""

from __future__ import annotations

import torch

CPU = torch.device("cpu")


def has_native_bf16(device: torch.device) -> bool:
    """Return whether the hardware of `device` has bf16 matrix products."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return device.type == "cpu" and probe is not None and bool(probe())


def fast_dtype(device: torch.device = CPU) -> torch.dtype:
    """Return the faster dtype of matrix products on `device`: bf16 if the hardware has bf16 products, else fp32."""
    return torch.bfloat16 if has_native_bf16(device) else torch.float32


def mixed_precision(device: torch.device = CPU) -> torch.autocast:
    """Return an autocast context that computes the matrix products of a training step in `fast_dtype`."""
    return torch.autocast(device.type, torch.bfloat16, enabled=has_native_bf16(device))
