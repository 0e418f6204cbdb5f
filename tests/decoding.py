"""Helpers of identity tests: decoding to the end, comparing outputs, recording drafts, and using one thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from polydraft.apps.measure.watched import ObservedDrafter
from polydraft.core.decode import Method, decode, start_batch
from polydraft.core.draft import Draft
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.state import BatchState


def run(method: Method, rows: list[PromptInputs]) -> tuple[list[torch.Tensor], float]:
    """Decode to the end; return outputs and τ."""
    batch = start_batch(method, rows)
    for _ in decode(method, batch):
        pass
    passes = sum(row.target_passes for row in batch.stats.values())
    return batch.outputs(), sum(row.tokens for row in batch.stats.values()) / passes


def all_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@dataclass
class RecordingDrafter(ObservedDrafter):
    """Drafter that records the drafts of another."""

    drafts: list[Draft] = field(default_factory=list)

    def draft(self, state: BatchState, drafter_state: Any, sampler: Sampler, noise: Noise) -> Draft:
        self.drafts.append(self.drafter.draft(state, drafter_state, sampler, noise))
        return self.drafts[-1]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread in every test of a folder whose conftest imports this: tensors are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
