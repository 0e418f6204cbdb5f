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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, cast

import torch
from torch import Tensor

from polydraft.core.latent.gaussian import Gaussian
from polydraft.core.law.history import History
from polydraft.core.law.noise import Noise, Places
from polydraft.core.law.sampling import Settings


class Chain(Protocol):
    """A head that denoises, as a chain of Gaussian steps.

    size: coordinates of a latent. start: standard deviation of what the chain begins with. steps: how many there are.
    """

    @property
    def size(self) -> int: ...

    @property
    def start(self) -> float: ...

    @property
    def steps(self) -> int: ...

    def condition(self, hidden: Tensor) -> Tensor:
        """What the steps read of hidden states `[..., D]`: computed once a token, `[..., W]`."""

    def moments(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> tuple[Tensor, float | Tensor]:
        """Mean `[B, K, C]` fp32 of x `[B, K, C]` after `step`, and its standard deviation before temperature.

        A number is fixed noise, the same whatever was drawn, 0 none at all; learnt noise is `[B, K, C]`. condition:
        `[B, R, K, W]` of the guidance branches (conditional, then unconditional); scale: `[B]`.
        """


class FixedNoise(ABC):
    """Mix-in for chains whose noise is the same whatever is drawn.

    deviations: of every step in order; 0 is a step without noise.
    """

    deviations: Sequence[float]

    @property
    def steps(self) -> int:
        return len(self.deviations)

    def moments(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> tuple[Tensor, float]:
        return self.mean(x, step, condition, scale), self.deviations[step]

    @abstractmethod
    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """`[B, K, C]` fp32: see `Chain.moments`."""


class Foreseeing(Protocol):
    """What a chain of fixed noise has whose head need not be asked at every step."""

    deviations: Sequence[float]

    def denoised(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """`[B, K, C]` fp32: the latent without noise that the mean after `step` goes towards."""

    def towards(self, x: Tensor, step: int, denoised: Tensor) -> Tensor:
        """`[B, K, C]` fp32: the mean of x after `step`, for whoever has `denoised`."""


@dataclass(frozen=True)
class Walk:
    """How drafted latents came about: states `[B, N, T+1, C]` from first to last, and the law of every step."""

    states: Tensor
    steps: list[Gaussian]

    @staticmethod
    def behind_each_other(walks: list[Walk]) -> Walk:
        steps = zip(*(walk.steps for walk in walks), strict=True)
        return Walk(torch.cat([walk.states for walk in walks], 1), [Gaussian.beside(step) for step in steps])

    @property
    def latents(self) -> Tensor:
        """`[B, N, C]` fp32: where they end."""
        return self.states[:, :, -1].float()


@dataclass(frozen=True)
class LatentLaw:
    """What latent may come next at every column.

    given: `[B, K, R, D]` hidden states of all branches. looks: at how many steps of a chain the head is asked when
    latents are drawn, for a cheaper draft; 0 is all. A draft is wanted for where its chain ends, and what the head
    expects there changes little from step to step.
    """

    chain: Chain
    given: Tensor
    scale: Tensor
    temperature: Tensor
    looks: int = 0

    @cached_property
    def condition(self) -> Tensor:
        return self.chain.condition(self.given.transpose(1, 2))

    @property
    def steps(self) -> int:
        return self.chain.steps

    def step(self, x: Tensor, step: int) -> Gaussian:
        """Of x `[B, K, C]` after `step`; the row's temperature scales its deviation."""
        mean, deviation = self.chain.moments(x.float(), step, self.condition, self.scale)
        level = None if isinstance(deviation, Tensor) else deviation
        spread = self.temperature[:, None, None] * deviation
        return Gaussian(mean.double(), spread.double(), level)

    def walking(self) -> Callable[[Tensor, int], Gaussian]:
        """The steps in their order, for one walk."""
        if self.looks in (0, self.steps):
            return self.step
        return Glances(self, cast(Foreseeing, self.chain)).step

    def drawn(self, where: Places) -> Tensor:
        """`[B, K, C]` fp32: the latents that the tape draws at these places."""
        *_, last = self.taped(where)
        return last.float()

    def taped(self, where: Places) -> Iterator[Tensor]:
        """`[B, K, C]` float64: what the tape draws, after every step of the chain."""
        begin, widths, offsets = where.latent(self.steps, self.chain.size)
        x, law_of = begin * self.chain.start, self.walking()
        for step in range(self.steps):
            law = law_of(x, step)
            x = dithered(law.mean, law.deviation * widths[step], offsets[step])
            if not law.noisy:
                x = torch.where(law.deviation > 0, x, law.mean)
            yield x

    def normals(self, noise: Noise) -> Tensor:
        """Standard normals `[1 + T, B, K, C]` float64 of the second stream, for `walked`; another draw."""
        sizes = 1 + self.steps, self.chain.size
        return noise.normal(self.given.shape[1], math.prod(sizes)).unflatten(2, sizes).movedim(2, 0)

    def walked(self, normals: Tensor) -> Walk:
        """Chains that draw Gaussian noise."""
        states, laws, law_of = [normals[0] * self.chain.start], [], self.walking()
        for step in range(self.steps):
            laws.append(law_of(states[-1], step))
            states.append(laws[-1].drawn(normals[1 + step]))
        # the token itself is float32, and what follows it has seen no other
        states[-1] = states[-1].float().double()
        return Walk(torch.stack(states, 2), laws)

    def possible(self, columns: Tensor, latents: Tensor) -> Tensor:
        """`[B, K]` bool: whether latents `[B, K, C]` are numbers."""
        return latents.isfinite().all(-1)


class Glances:
    """Steps of one walk along a law's chain, whose head is asked at some of them, the first among them."""

    def __init__(self, law: LatentLaw, chain: Foreseeing) -> None:
        self.law, self.chain, looks = law, chain, law.looks
        self.at = {round(look * (law.steps - 1) / max(1, looks - 1)) for look in range(looks)}
        self.expected: Tensor | None = None

    def step(self, x: Tensor, step: int) -> Gaussian:
        """As `LatentLaw.step`, towards what was expected last."""
        law, chain, x = self.law, self.chain, x.float()
        if step in self.at or self.expected is None:
            self.expected = chain.denoised(x, step, law.condition, law.scale)
        level = chain.deviations[step]
        spread = law.temperature[:, None, None] * level
        return Gaussian(chain.towards(x, step, self.expected).double(), spread.double(), level)


def dithered(mean: Tensor, half: Tensor, offset: Tensor) -> Tensor:
    """The point of the lattice `2 half (Z + offset)` in [mean - half, mean + half)."""
    width = 2 * half
    return width * (((mean - half) / width - offset).ceil() + offset)


@dataclass(frozen=True)
class LatentSampler:
    """Laws of a chain; what a Sampler is for ids. looks: see `LatentLaw`."""

    chain: Chain
    looks: int = 0
    ends: Tensor | None = None  # latents have no end of their own
    forced = 0

    def remembers(self, settings: Settings) -> bool:
        return False

    def __call__(self, hidden: Tensor, settings: Settings, history: History | None = None) -> LatentLaw:
        """Of hidden states `[B, K, R, D]`."""
        return self.again(hidden, settings)

    def again(self, given: Tensor, settings: Settings) -> LatentLaw:
        """The same; a latent's law depends on nothing else."""
        return LatentLaw(self.chain, given, settings.guidance_scale, settings.temperature, self.looks)
