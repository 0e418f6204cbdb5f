"""What a batch of rows has committed so far: tokens, lengths, budgets. Rows are ragged and join or leave between steps.

Small counters live on the host, next to the loop that reads them every step; tokens and cache lengths on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydraft.core.cache import SlotCache


@dataclass
class State:
    """Committed rows of one target (or of a drafter that is a network with a cache of its own).

    tokens: `[B, L]` int64, prompt and generated ids of the conditional branch, right-padded.
    starts: prompt length of each row; generated: tokens committed since; budget: most tokens a row may get.
    offsets: `[B, R]` int64, prompt length of every guidance branch (R=1 without guidance).
    ids: which request each row is; finish: why it ended, None while it is active.
    """

    tokens: Tensor
    starts: list[int]
    generated: list[int]
    budget: list[int]
    offsets: Tensor
    cache: SlotCache
    ids: list[int]
    finish: list[str | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def branches(self) -> int:
        return self.offsets.shape[1]

    @property
    def active(self) -> list[bool]:
        return [reason is None for reason in self.finish]

    @property
    def lengths(self) -> list[int]:
        return [start + done for start, done in zip(self.starts, self.generated, strict=True)]

    def roots(self) -> Tensor:
        """`[B, 1]`: the last committed token of every row, the one without keys and values."""
        last = torch.tensor(self.lengths, device=self.tokens.device)[:, None] - 1
        return self.tokens.gather(1, last)

    def cached(self) -> Tensor:
        """`[B, R]`: committed positions that have keys and values, i.e. all but the root."""
        done = torch.tensor(self.generated, device=self.offsets.device)
        return self.offsets + done[:, None] - 1

    def valid(self) -> Tensor:
        """`[B, L]` bool: committed places of `tokens`."""
        lengths = torch.tensor(self.lengths, device=self.tokens.device)
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < lengths[:, None]

    def append(self, tokens: Tensor, counts: list[int]) -> None:
        """Commit the first `counts[b]` of `tokens` `[B, D]` to every row."""
        places = torch.tensor(self.lengths, device=tokens.device)[:, None] + torch.arange(tokens.shape[1])
        keep = torch.arange(tokens.shape[1])[None] < torch.tensor(counts)[:, None]
        rows = torch.arange(len(self))[:, None].expand_as(places)
        self.tokens[rows[keep], places[keep]] = tokens[keep]
        self.generated = [done + count for done, count in zip(self.generated, counts, strict=True)]

    def output(self, row: int) -> Tensor:
        """Generated ids of a row."""
        return self.tokens[row, self.starts[row] : self.starts[row] + self.generated[row]]

    def outputs(self) -> list[Tensor]:
        """Generated ids of every row."""
        return [self.output(row) for row in range(len(self))]

    def physical(self, rows: list[int]) -> Tensor:
        """Cache rows of logical `rows`: every branch of each."""
        picked = torch.tensor(rows, dtype=torch.long, device=self.tokens.device)
        return (picked[:, None] * self.branches + torch.arange(self.branches, device=picked.device)).flatten()

    def select(self, rows: list[int]) -> State:
        """Only `rows`, in that order, with all their branches."""

        def pick(values: list) -> list:
            return [values[row] for row in rows]

        return State(
            self.tokens[rows], pick(self.starts), pick(self.generated), pick(self.budget), self.offsets[rows],
            self.cache.select(self.physical(rows)), pick(self.ids), pick(self.finish),
        )  # fmt: skip

    @staticmethod
    def concat(states: list[State]) -> State:
        """All rows of `states`, for rows that join; caches must have one capacity."""
        width = max(state.tokens.shape[1] for state in states)
        padded = [torch.nn.functional.pad(s.tokens, (0, width - s.tokens.shape[1])) for s in states]

        def gather(name: str) -> list:
            return [value for state in states for value in getattr(state, name)]

        return State(
            torch.cat(padded), gather("starts"), gather("generated"), gather("budget"),
            torch.cat([state.offsets for state in states]), SlotCache.concat([state.cache for state in states]),
            gather("ids"), gather("finish"),
        )  # fmt: skip
