"""The seam of verifiers: from a draft and the target's law to a verdict."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.law.noise import Noise
from polydraft.core.verdict import Verdict


class Verifier(Protocol):
    """Judges drafts.

    guarantee: "identical" (same seed, same tokens), "exact" (same law) or "lossy". on_tape: its noise is the tape; else
    the second stream. Which drafts it can judge is said in its row of the registry.
    """

    @property
    def guarantee(self) -> str: ...

    @property
    def on_tape(self) -> bool: ...

    def verify(self, draft: Draft, law: Any, noise: Noise, t: Tensor) -> Verdict:
        """law: of ids (`core.law.sampling`) or latents (`core.latent.law`) at the draft's columns.

        t: `[B]` tokens every row has generated.
        """
