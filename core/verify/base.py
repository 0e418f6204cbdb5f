"""The seam of verifiers: from a draft and the target's law to a verdict."""

from __future__ import annotations

from typing import ClassVar, Protocol

from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.verdict import Verdict


class Verifier(Protocol):
    """`guarantee` is "identical" (same seed, same tokens), "exact" (same law) or "lossy"."""

    guarantee: ClassVar[str]
    needs_q: ClassVar[bool]

    def verify(self, draft: Draft, law: Tensor, noise: Tensor) -> Verdict: ...
