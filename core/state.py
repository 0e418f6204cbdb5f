"""What a batch of rows has committed so far: tokens, lengths, budgets, settings. All of it lives on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.law.sampling import Settings
from polydraft.core.model.cache import SlotCache, blocks
from polydraft.core.rows import Rows, following
from polydraft.core.tokens import put, take


@dataclass
class State(Rows):
    """Committed rows of one target.

    tokens: `[B, L]` int64, prompt and generated ids of the conditional branch, right-padded; or `[B, L, C]` latents,
    nan where there is none: in prompts.
    starts: `[B]` prompt length; generated: `[B]` tokens committed since; budget: `[B]` most tokens a row may get.
    offsets: `[B, R]` int64, prompt length of every guidance branch (R=1 without guidance).
    reached: on the host, how many positions each row's longest branch has.
    begins: `[B, R, D]`, what every branch reads for the last of its prompt, where its id does not say that.
    is_finite: `[B, 1]` bool, whether what the target made of a row's prompt are numbers; a row of which they are not
    cannot go on. None where every token reads the whole row anew, so that its outputs tell.
    """

    tokens: Tensor
    starts: Tensor
    generated: Tensor
    budget: Tensor
    offsets: Tensor
    settings: Settings
    reached: list[int]
    cache: SlotCache
    begins: Tensor | None = None
    is_finite: Tensor | None = None

    def __len__(self) -> int:
        return len(self.reached)

    @property
    def branches(self) -> int:
        return self.offsets.shape[1]

    @property
    def lengths(self) -> Tensor:
        """`[B]`: committed tokens, the prompt's included."""
        return self.starts + self.generated

    @property
    def longest(self) -> int:
        """Positions of the longest row."""
        return max(self.reached, default=0)

    def roots(self) -> Tensor:
        """`[B, 1, …]`: the last committed token of every row, the one without keys and values."""
        return take(self.tokens, self.lengths[:, None] - 1)

    def cached(self) -> Tensor:
        """`[B, R]`: committed positions that have keys and values, i.e. all but the root."""
        return self.offsets + (self.generated[:, None] - 1)

    def reach(self, further: int) -> None:
        """Room for so many positions behind the longest row."""
        self.cache.reach(self.longest + further)
        if (short := self.longest + further - self.tokens.shape[1]) > 0:
            more = self.tokens.new_zeros(len(self), blocks(short), *self.tokens.shape[2:])
            self.tokens = torch.cat([self.tokens, more], 1)

    def append(self, tokens: Tensor, counts: Tensor) -> None:
        """Commit the first `counts[b]` of tokens `[B, D, …]` to every row; what follows them is written over later."""
        put(self.tokens, following(self.lengths, tokens.shape[1]), tokens)
        self.generated = self.generated + counts
