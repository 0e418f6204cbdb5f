"""Interface of verifiers: from a draft and the target's distribution to a verification result."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.sampling.noise import Noise
from polydraft.core.verification import VerificationResult


class Verifier(Protocol):
    """Verifier of drafts; which drafts it can verify is part of its entry in the registry."""

    @property
    def guarantee(self) -> str:
        """Return the guarantee: "identical" (same seed, same tokens), "exact" (same distribution) or "lossy"."""

    @property
    def uses_shared_noise(self) -> bool:
        """Return True if it samples with shared noise, False if with fresh noise."""

    def verify(self, draft: Draft, distribution: Any, noise: Noise, num_generated: Tensor) -> VerificationResult:
        """Accept a path of every draft tree and sample the bonus token after it.

        Args:
            draft (Draft): proposed tokens.
            distribution (TokenDistribution | LatentDistribution): the target's, at the draft's tree indices.
            noise (Noise): noise of the batch.
            num_generated (Tensor): `[B]` tokens that every row has generated before the draft.
        """
