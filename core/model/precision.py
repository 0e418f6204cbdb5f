"""Where bf16 is multiplied by the hardware, and what training does there.

with mixed(device):
    hidden = model(ids)    # products in bf16 where that is quicker, in fp32 elsewhere

A processor without such products takes eight times as long in bf16 as in fp32 (AMD Zen 3: 6 and 53 GFLOP/s a core).
"""

from __future__ import annotations

import torch

CPU = torch.device("cpu")


def native_bf16(device: torch.device) -> bool:
    """Whether the hardware behind `device` multiplies bf16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return device.type == "cpu" and probe is not None and bool(probe())


def fast_dtype(device: torch.device = CPU) -> torch.dtype:
    """bf16 where the hardware multiplies it, fp32 elsewhere."""
    return torch.bfloat16 if native_bf16(device) else torch.float32


def mixed(device: torch.device = CPU) -> torch.autocast:
    """Products of a training step in `fast_dtype`, all else as it is."""
    return torch.autocast(device.type, torch.bfloat16, enabled=native_bf16(device))
