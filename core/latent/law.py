"""The law of a latent: a denoising chain whose every step is Gaussian, given the target's hidden state.

    law = LatentSampler(chain)(hidden, settings)     # hidden: [B, K, R, D]
    latents = law.drawn(noise.at(t))                 # the tape's, [B, K, C]

On the tape every step is emitted by layered dither: with a = σ√χ²₃, W = 2a and an offset u in (0, 1) it is the one
point of the lattice W (Z + u) in [μ - a, μ + a). A Gaussian is a mixture of such uniforms, so the law is exact; and the
point depends on μ through an integer alone. Two chains with nearby means therefore emit the very same numbers mostly,
and verifying a draft is comparing latents. It asks for the same σ in both chains, and for σ > 0 at the last step: where
a head ends without noise, two latents are equal only if all that led to them was, and no draft is of use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from polydraft.core.history import History
from polydraft.core.noise import Noise, Places
from polydraft.core.sampling import Settings


class Chain(Protocol):
    """A head that denoises, as a chain of Gaussian steps of fixed isotropic variance.

    size: coordinates of a latent. start: standard deviation of what the chain begins with. deviations: of every step in
    order; 0 is a step without noise.
    """

    @property
    def size(self) -> int: ...

    @property
    def start(self) -> float: ...

    @property
    def deviations(self) -> Sequence[float]: ...

    def condition(self, hidden: Tensor) -> Tensor:
        """What the steps read of hidden states `[..., D]`: computed once a token, `[..., W]`."""

    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """`[B, K, C]` fp32: the mean of x `[B, K, C]` after `step`.

        condition: `[B, R, K, W]` of the guidance branches (conditional, then unconditional); scale: `[B]`.
        """

    def denoised(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """`[B, K, C]` fp32: the latent without noise that `mean` goes towards."""

    def towards(self, x: Tensor, step: int, denoised: Tensor) -> Tensor:
        """`[B, K, C]` fp32: the mean of x after `step`, for whoever has `denoised`."""


@dataclass(frozen=True)
class Walk:
    """How drafted latents came about: states `[B, N, T+1, C]` from the first to the latent, means `[B, N, T, C]`."""

    states: Tensor
    means: Tensor

    @staticmethod
    def behind_each_other(walks: list[Walk]) -> Walk:
        return Walk(torch.cat([walk.states for walk in walks], 1), torch.cat([walk.means for walk in walks], 1))

    @property
    def latents(self) -> Tensor:
        """`[B, N, C]` fp32: where they end."""
        return self.states[:, :, -1].float()


@dataclass(frozen=True)
class LatentLaw:
    """What latent may come next at every column. given: `[B, K, R, D]` hidden states of all branches."""

    chain: Chain
    given: Tensor
    scale: Tensor
    temperature: Tensor

    @cached_property
    def condition(self) -> Tensor:
        return self.chain.condition(self.given.transpose(1, 2))

    def mean(self, x: Tensor, step: int) -> Tensor:
        """`[B, K, C]` float64: see `Chain.mean`."""
        return self.chain.mean(x.float(), step, self.condition, self.scale).double()

    def deviation(self, step: int) -> Tensor:
        """`[B, 1, 1]`: σ of a step; the row's temperature scales it."""
        return (self.temperature * self.chain.deviations[step]).double()[:, None, None]

    @property
    def steps(self) -> int:
        return len(self.chain.deviations)

    def means(self, looks: int) -> Callable[[Tensor, int], Tensor]:
        """Means of the steps, in their order. looks: 0, or at how many of them the head is asked, for a cheaper draft.

        A draft is wanted for where its chain ends, and what the head expects there changes little from step to step.
        """
        return self.mean if looks in (0, self.steps) else Glances(self, looks).mean

    def drawn(self, where: Places, looks: int = 0) -> Tensor:
        """`[B, K, C]` fp32: the latents that the tape draws at these places; looks: see `means`."""
        *_, last = self.taped(where, looks)
        return last.float()

    def taped(self, where: Places, looks: int = 0) -> Iterator[Tensor]:
        """`[B, K, C]` float64: what the tape draws, after every step of the chain."""
        begin, widths, offsets = where.latent(self.steps, self.chain.size)
        x, means = begin * self.chain.start, self.means(looks)
        for step in range(self.steps):
            mean = means(x, step)
            ends = not self.chain.deviations[step]  # there is nothing to draw
            x = mean if ends else dithered(mean, self.deviation(step) * widths[step], offsets[step])
            yield x

    def normals(self, noise: Noise) -> Tensor:
        """Standard normals `[1 + T, B, K, C]` float64 of the second stream, for `walked`; another draw."""
        sizes = 1 + self.steps, self.chain.size
        return noise.normal(self.given.shape[1], math.prod(sizes)).unflatten(2, sizes).movedim(2, 0)

    def walked(self, normals: Tensor, looks: int = 0) -> Walk:
        """Chains that draw Gaussian noise; looks: see `means`."""
        states, means, mean = [normals[0] * self.chain.start], [], self.means(looks)
        for step in range(self.steps):
            means.append(mean(states[-1], step))
            states.append(means[-1] + self.deviation(step) * normals[1 + step])
        # the token itself is float32, and what follows it has seen no other
        states[-1] = states[-1].float().double()
        return Walk(torch.stack(states, 2), torch.stack(means, 2))

    def possible(self, columns: Tensor, latents: Tensor) -> Tensor:
        """`[B, K]` bool: whether latents `[B, K, C]` are numbers."""
        return latents.isfinite().all(-1)


class Glances:
    """Means of one walk along a law's chain, whose head is asked at `looks` steps, the first among them."""

    def __init__(self, law: LatentLaw, looks: int) -> None:
        self.law = law
        self.at = {round(look * (law.steps - 1) / max(1, looks - 1)) for look in range(looks)}
        self.expected: Tensor | None = None

    def mean(self, x: Tensor, step: int) -> Tensor:
        """As `LatentLaw.mean`, towards what was expected last."""
        law, x = self.law, x.float()
        if step in self.at or self.expected is None:
            self.expected = law.chain.denoised(x, step, law.condition, law.scale)
        return law.chain.towards(x, step, self.expected).double()


def dithered(mean: Tensor, half: Tensor, offset: Tensor) -> Tensor:
    """The point of the lattice `2 half (Z + offset)` in [mean - half, mean + half)."""
    width = 2 * half
    return width * (((mean - half) / width - offset).ceil() + offset)


@dataclass(frozen=True)
class LatentSampler:
    """Laws of a chain; what a Sampler is for ids."""

    chain: Chain
    ends: Tensor | None = None  # latents have no end of their own
    forced = 0

    def remembers(self, settings: Settings) -> bool:
        return False

    def __call__(self, hidden: Tensor, settings: Settings, history: History | None = None) -> LatentLaw:
        """Of hidden states `[B, K, R, D]`."""
        return self.again(hidden, settings)

    def again(self, given: Tensor, settings: Settings) -> LatentLaw:
        """The same; a latent's law depends on nothing else."""
        return LatentLaw(self.chain, given, settings.guidance_scale, settings.temperature)
