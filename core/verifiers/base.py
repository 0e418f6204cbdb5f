"""Interface of verifiers: from a draft and the target's distribution to a verification result."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.sampling.noise import Noise
from polydraft.core.verification import VerificationResult


class Verifier(Protocol):
    """Verifier of drafts; its entry in `core.methods.verifiers` lists the types of drafts that it can verify."""

    @property
    def guarantee(self) -> str:
        """Return the guarantee: "identical" (same seed, same tokens), "exact" (same distribution) or "lossy"."""

    @property
    def uses_shared_noise(self) -> bool:
        """Return True if it samples with position-keyed noise that drafters share, False if with fresh noise."""

    def verify(self, draft: Draft, distribution: Any, noise: Noise, num_generated: Tensor) -> VerificationResult:
        """Accept a path of every draft tree and sample the bonus token after it.

        Args:
            draft (Draft): one draft tree of N nodes per batch row.
            distribution (TokenDistribution | LatentDistribution): the target's, at the N + 1 tree indices of the draft.
            noise (Noise): random numbers of the batch rows.
            num_generated (Tensor): `[B]` tokens that every batch row has generated before the draft.

        Returns:
            VerificationResult: accepted path of every batch row, and the bonus token.
        """
