"""Bandwidth of a device's memory: what bounds decoding at batch 1, whose passes read every weight once.

rate = bandwidth(device)          # bytes a second
bandwidth_note(device, rate)      # "memory is read at 30 GB/s here"
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from polydraft.apps.measure.timing import settle

READ_BYTES, COPIED_BYTES = 2**30, 2**32  # on CPUs, whose caches may hold 2**28, and on accelerators
ROW = 1024  # numbers of a row of the matrix
ROUNDS = 10


@torch.inference_mode()
def bandwidth(device: torch.device) -> float:
    """Return bytes per second: on CPUs those that are read, elsewhere those that a copy reads and writes.

    CPUs read with torch's threads in three ways, of which the fastest counts; all are several times as fast over data
    in caches, so memory bounds them. A copy would understate it: stores may fetch the line that they overwrite.
    """
    if device.type == "cpu":
        source = torch.ones(READ_BYTES // 4)
        halves, matrix, row = source.view(2, -1), source.view(-1, ROW), torch.ones(ROW)
        reads = (source.sum, partial(torch.dot, halves[0], halves[1]), partial(torch.mv, matrix, row))
        return source.numel() * source.itemsize / least_seconds(reads)
    source = torch.ones(COPIED_BYTES // 4, device=device)
    return 2 * source.numel() * source.itemsize / least_seconds([partial(torch.empty_like(source).copy_, source)])


def least_seconds(works: Sequence[Callable[[], object]]) -> float:
    """Return the seconds of the fastest call among several of each work."""
    least = math.inf
    for work in [*works] * ROUNDS:
        settle()
        begun = time.perf_counter()
        work()
        settle()
        least = min(least, time.perf_counter() - begun)
    return least


def bandwidth_note(device: torch.device, rate: float) -> str:
    """Return a note of a measured bandwidth, in bytes per second."""
    return f"memory is {'read' if device.type == 'cpu' else 'copied'} at {rate / 1e9:.0f} GB/s here"
