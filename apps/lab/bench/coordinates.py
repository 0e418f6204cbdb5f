"""Estimate the speedup of drafting if a token had fewer or more coordinates, from the drafts of one run.

    results = measure_by_coordinates(pipe, pipe.parse_method("jacobi"), prompts)  # [CoordinateResult(…), …]

Images are decoded once, drafted. In every pass drafts are compared with the target's samples: over their first
coordinates alone, and, for tokens of several consecutive latents, group by group. That gives τ; with the measured cost
of a pass, S is τ times the seconds of a plain pass over those of a drafted one. Drafts of later passes are those of the
actual model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from polydraft.apps.measure.decoding import decoded
from polydraft.apps.measure.table import PLAIN
from polydraft.core.continuous.denoising import LatentDistribution
from polydraft.core.draft import Draft
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.methods.spec import MethodSpec
from polydraft.core.sampling.noise import Noise
from polydraft.core.target.causal import PromptInputs
from polydraft.core.tokens import batch_gather
from polydraft.core.verification import VerificationResult
from polydraft.core.verifiers.base import Verifier
from polydraft.modalities.image.latent.pipeline import LatentImagePipeline
from polydraft.modalities.pipeline import uses_cfg

GROUPS = (2, 4)  # latents per token, beside one


@dataclass(frozen=True)
class CoordinateResult:
    """Estimate for tokens of so many coordinates."""

    coordinates: int
    tau: float  # tokens per pass
    passes: float  # per image
    speedup: float  # over plain decoding of such tokens


@dataclass(frozen=True)
class RecordingVerifier:
    """Verifier that records which drafted coordinates equal the target's, [B, N, C] bool per pass."""

    inner: Verifier
    matches: list[Tensor] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def verify(self, draft: Draft, distribution: LatentDistribution, noise: Noise, t: Tensor) -> VerificationResult:
        verdict = self.inner.verify(draft, distribution, noise, t)
        self.matches.append(
            (draft.tokens == batch_gather(verdict.target_tokens, draft.parents + 1)) & draft.valid[..., None]
        )
        return verdict


def count_accepted(agrees: Tensor, coordinates: int) -> Tensor:
    """Return the number [B] of drafted latents before the first mismatch in the first coordinates of `agrees`."""
    return agrees[..., :coordinates].all(-1).cumprod(1).sum(1)


def taus_by_coordinates(passes: Sequence[Tensor], size: int) -> dict[int, float]:
    """Return τ by coordinates per token: the first of a latent's `size`, all of them, all of several latents."""

    def mean(counts: list[Tensor]) -> float:
        return 1 + torch.cat(counts).float().mean().item()

    tau_by_coordinates = {
        width: mean([count_accepted(agrees, width) for agrees in passes]) for width in range(1, size + 1)
    }
    accepted_latents = [count_accepted(agrees, size) for agrees in passes]
    return tau_by_coordinates | {size * group: mean([count // group for count in accepted_latents]) for group in GROUPS}


def measure_by_coordinates(
    pipe: LatentImagePipeline, choice: MethodSpec, prompts: list[PromptInputs]
) -> list[CoordinateResult]:
    """Decode `prompts` plainly and drafted in chains by `choice`, one after the other.

    Raises:
        UnsupportedMethod: the method does not compare latents.
    """
    plain = decoded(pipe.method(pipe.parse_method(PLAIN), uses_cfg(prompts)), prompts)
    method = pipe.method(choice, uses_cfg(prompts))
    if not method.verifier.uses_shared_noise or method.verifier.guarantee != "identical":
        raise UnsupportedMethod(f"method {choice.name!r} does not compare latents; use one of jacobi, eagle, draft.")
    recorder = RecordingVerifier(method.verifier)
    drafted = decoded(replace(method, verifier=recorder), prompts)
    cost = (plain.seconds / plain.passes) / (drafted.seconds / drafted.passes)
    size = recorder.matches[0].shape[-1]
    latents = plain.tokens / len(prompts)
    return [
        CoordinateResult(width, tau, latents * min(1.0, size / width) / tau, tau * cost)
        for width, tau in taus_by_coordinates(recorder.matches, size).items()
    ]
