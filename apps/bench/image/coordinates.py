"""What drafting would gain if a token had fewer or more coordinates: measured passes, judged over and over.

    found = by_coordinates(pipe, pipe.parsed("jacobi"), prompts)     # [Width(coordinates=1, tau=…, speedup=…), …]

Pictures are decoded once, drafted. In every pass drafts are compared with what the target drew there: over their first
coordinates alone, and, for tokens of several latents in a row, group by group. That gives tau; a pass costs what it was
measured to cost, so S = tau times the seconds of a plain pass over those of a drafted one. Drafts of later passes are
those of the model as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from polydraft.apps.bench.measure.decoding import decoded
from polydraft.apps.bench.measure.table import PLAIN
from polydraft.core.draft import Draft
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.latent.law import LatentLaw
from polydraft.core.law.noise import Noise
from polydraft.core.methods.method import Choice
from polydraft.core.target import Prompt
from polydraft.core.tokens import take
from polydraft.core.verdict import Verdict
from polydraft.core.verify.base import Verifier
from polydraft.modalities.image.latent.pipeline import LatentImagePipeline
from polydraft.modalities.pipeline import guided

GROUPS = (2, 4)  # latents a token, beside one


@dataclass(frozen=True)
class Width:
    """tau: tokens a pass; passes: that a picture takes; speedup: over plain decoding of such tokens."""

    coordinates: int
    tau: float
    passes: float
    speedup: float


@dataclass(frozen=True)
class Compared:
    """A verifier that keeps which drafted coordinates were the target's own, `[B, N, C]` bool a pass."""

    own: Verifier
    found: list[Tensor] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def verify(self, draft: Draft, law: LatentLaw, noise: Noise, t: Tensor) -> Verdict:
        verdict = self.own.verify(draft, law, noise, t)
        self.found.append((draft.tokens == take(verdict.choices, draft.parents + 1)) & draft.valid[..., None])
        return verdict


def accepted(agrees: Tensor, coordinates: int) -> Tensor:
    """`[B]`: drafted latents before the first that differs in one of its first coordinates; agrees: `[B, N, C]`."""
    return agrees[..., :coordinates].all(-1).cumprod(1).sum(1)


def taus(passes: Sequence[Tensor], size: int) -> dict[int, float]:
    """Tokens a pass by coordinates a token: the first of a latent's `size`, all of them, all of several latents."""

    def mean(counts: list[Tensor]) -> float:
        return 1 + torch.cat(counts).float().mean().item()

    found = {width: mean([accepted(agrees, width) for agrees in passes]) for width in range(1, size + 1)}
    whole = [accepted(agrees, size) for agrees in passes]
    return found | {size * group: mean([count // group for count in whole]) for group in GROUPS}


def by_coordinates(pipe: LatentImagePipeline, choice: Choice, asked: list[Prompt]) -> list[Width]:
    """Decode `asked` plainly and drafted in chains by `choice`, one after the other."""
    plain = decoded(pipe.method(pipe.parsed(PLAIN), guided(asked)), asked)
    method = pipe.method(choice, guided(asked))
    if not method.verifier.on_tape or method.verifier.guarantee != "identical":
        raise UnsupportedMethod(f"method {choice.name!r} does not compare latents; use one of jacobi, eagle, draft.")
    judge = Compared(method.verifier)
    drafted = decoded(replace(method, verifier=judge), asked)
    cost = (plain.seconds / plain.passes) / (drafted.seconds / drafted.passes)
    size = judge.found[0].shape[-1]
    latents = plain.tokens / len(asked)
    return [
        Width(width, tau, latents * min(1.0, size / width) / tau, tau * cost)
        for width, tau in taus(judge.found, size).items()
    ]
