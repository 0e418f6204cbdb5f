"""The seam of drafters. A drafter holds weights and settings; what belongs to requests is in its draft state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.sampling import Sampler
from polydraft.core.state import State
from polydraft.core.target import Prefill, Prompt
from polydraft.core.verdict import Verdict


@dataclass(frozen=True)
class Judged:
    """What became of a draft: law `[B, N+1, V]` log p, the target's features `[B, R, N+1, D]`, and the verdict."""

    draft: Draft
    law: Tensor
    features: Tensor
    verdict: Verdict


class Drafter(Protocol):
    """`reach` is the deepest node it drafts, in positions; `nodes` is the most it drafts a pass."""

    @property
    def reach(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    def begin(self, prompts: list[Prompt], seen: Prefill) -> Any:
        """The draft state of new rows; `seen`: what the target made of their prompts."""

    def draft(self, state: State, drafts: Any, sampler: Sampler, noise: Any) -> Draft:
        """Guess what follows the root of every row. noise: a NoiseTape or a SecondStream, as the verifier asks."""

    def observe(self, state: State, drafts: Any, judged: Judged) -> None:
        """See what became of the draft; `state` has already committed the verdict."""

    def select(self, drafts: Any, rows: list[int]) -> Any:
        """The draft state of `rows`."""

    def concat(self, drafts: list[Any]) -> Any:
        """The draft state of all rows."""


class Stateless:
    """Mix-in for drafters that read everything from the committed rows; a chain unless they say otherwise."""

    reach: int

    @property
    def nodes(self) -> int:
        return self.reach

    def begin(self, prompts: list[Prompt], seen: Prefill) -> Any:
        return None

    def observe(self, state: State, drafts: Any, judged: Judged) -> None:
        return None

    def select(self, drafts: Any, rows: list[int]) -> Any:
        return None

    def concat(self, drafts: list[Any]) -> Any:
        return None
