"""What identity tests share: decoding to the end, and whether two runs say the same."""

from __future__ import annotations

import torch

from polydraft.core.decode import Method, decode, start
from polydraft.core.target import Prompt


def run(method: Method, rows: list[Prompt]) -> tuple[list[torch.Tensor], float]:
    """Outputs and τ."""
    batch = start(method, rows)
    for _ in decode(method, batch):
        pass
    passes = sum(row.target_passes for row in batch.stats.values())
    return batch.outputs(), sum(row.tokens for row in batch.stats.values()) / passes


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
