"""Native bf16 support, and mixed-precision training.

with mixed_precision(device):
    hidden = model(ids)    # matrix products in bf16 where that is faster, in fp32 elsewhere

A processor without bf16 products takes eight times as long in bf16 as in fp32 (AMD Zen 3: 6 and 53 GFLOP/s a core).
One with AVX-512 products and without AMX may take twice as long in large products (Intel Sapphire Rapids: 83 and 163
GFLOP/s a core), while weights that have to come from memory are still read faster in bf16.
"""

from __future__ import annotations

import time
from functools import cache

import torch

CPU = torch.device("cpu")
PROBE_SIZE = 512  # rows, columns and inner size of the product that is timed
PROBE_REPEATS = 5


def has_native_bf16(device: torch.device) -> bool:
    """Return whether the hardware of `device` has bf16 matrix products."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return device.type == "cpu" and probe is not None and bool(probe())


def fast_dtype(device: torch.device = CPU) -> torch.dtype:
    """Return the faster dtype of matrix products on `device`: bf16 if the hardware has bf16 products, else fp32."""
    return torch.bfloat16 if has_native_bf16(device) else torch.float32


def mixed_precision(device: torch.device = CPU, has_bf16_layers: bool = False) -> torch.autocast:
    """Return an autocast context that computes the matrix products of a training step in the faster of bf16 and fp32.

    They are so large that arithmetic limits them, not memory, so `fast_dtype` does not tell which is faster.

    Args:
        device (torch.device): Device of the step.
        has_bf16_layers (bool): Whether layers of a target in bf16 take part, which rules out fp32.
    """
    enabled = has_native_bf16(device) and (has_bf16_layers or is_bf16_faster(device))
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


@cache
def is_bf16_faster(device: torch.device) -> bool:
    """Return whether `device` computes a large matrix product faster in bf16 than in fp32; on CPUs it is timed once."""
    return device.type != "cpu" or time_product(torch.bfloat16) < time_product(torch.float32)


def time_product(dtype: torch.dtype) -> float:
    """Return the seconds that the CPU takes for a matrix product of PROBE_SIZE, the shortest of PROBE_REPEATS times."""
    factor = torch.ones(PROBE_SIZE, PROBE_SIZE, dtype=dtype)
    seconds = []
    for _ in range(1 + PROBE_REPEATS):  # the first one prepares the kernel
        started_at = time.perf_counter()
        torch.mm(factor, factor)
        seconds.append(time.perf_counter() - started_at)
    return min(seconds)
