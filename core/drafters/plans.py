"""Which nodes a draft tree gets: the seam of plans, and how they rank children. See dynamic.py and static.py.

A plan asks level by level for the laws behind its live nodes, and says which of their children live on; in the end it
says which nodes are drafted. `rank` turns a proposal into such a score, log of an estimated acceptance: with the shared
noise, children come in the order in which the target would choose them (methods that walk the tape) or in which they
were drawn (methods that test them), and a clear winner under `log q + g` is probably the target's winner too.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from polydraft.core.draft import Draft


class Rank(Protocol):
    """draws: children are draws from q, in order; otherwise they are what q makes of them."""

    draws: bool

    def __call__(self, law: Tensor, noise: Tensor) -> Tensor:
        """log q `[B, C, V]` and noise `[B, 1, V]` → scores `[B, C, V]`, at most 0."""


@dataclass(frozen=True)
class SharedNoise:
    """`softmax((log q + g) / spread)`: spread is the scale of the drafter's error in logits, fitted to the model."""

    spread: float = 1.0

    draws = True

    def __call__(self, law: Tensor, noise: Tensor) -> Tensor:
        return ((law + noise) / self.spread).log_softmax(-1)


@dataclass(frozen=True)
class Likeliest:
    """log q alone, as EAGLE-2 is published."""

    draws = False

    def __call__(self, law: Tensor, noise: Tensor) -> Tensor:
        return law.log_softmax(-1)


Levels: TypeAlias = "Generator[Tensor, tuple[Tensor, Tensor], None]"
"""Laws `[B, W, V]` behind the live nodes of a level, from the stem's end on; it is sent the next level's live nodes:
ids `[B, W]` and parents, places in the level before."""


class Plan(Protocol):
    """depth: levels; nodes: most nodes a draft has."""

    @property
    def depth(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    def grow(self, levels: Levels, noise: Tensor, rank: Rank) -> Tree:
        """Noise `[B, depth, V]` of the levels."""


class Tree(Protocol):
    """What was grown. led: the draft with its best path in front; likewise `draft`, siblings in order."""

    @property
    def draft(self) -> Draft: ...

    @property
    def led(self) -> Draft: ...

    @property
    def levels(self) -> int:
        """How many were grown."""

    def q(self) -> Tensor:
        """Log q behind every column of `draft`, `[B, N + 1, V]`; meaningless behind leaves."""
