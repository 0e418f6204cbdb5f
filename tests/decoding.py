"""What identity tests share: decoding to the end, whether two runs say the same, what was drafted, and one thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from polydraft.core.decode import Method, decode, start
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Drafter, Outcome
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Sampler
from polydraft.core.state import State
from polydraft.core.target import Prefill, Prompt


def run(method: Method, rows: list[Prompt]) -> tuple[list[torch.Tensor], float]:
    """Outputs and τ."""
    batch = start(method, rows)
    for _ in decode(method, batch):
        pass
    passes = sum(row.target_passes for row in batch.stats.values())
    return batch.outputs(), sum(row.tokens for row in batch.stats.values()) / passes


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@dataclass
class Watched:
    """A drafter whose drafts are kept."""

    drafter: Drafter
    drafts: list[Draft] = field(default_factory=list)

    def begin(self, own: Any, seen: Prefill) -> Any:
        return self.drafter.begin(own, seen)

    def draft(self, state: State, own: Any, sampler: Sampler, noise: Noise) -> Draft:
        self.drafts.append(self.drafter.draft(state, own, sampler, noise))
        return self.drafts[-1]

    def observe(self, state: State, own: Any, outcome: Outcome) -> None:
        self.drafter.observe(state, own, outcome)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """For every test of a folder whose conftest imports it. Tiny tensors: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
