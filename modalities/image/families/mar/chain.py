"""The chain of diffusion steps that draws one token, step by step: each is a Gaussian whose variance the head learnt.

    chain = Chain(model.net, steps=100, temperature=1.0)
    condition = chain.condition(z)                          # z of conditional and unconditional branch, [N, R, D]
    x = first_noise
    for step in range(chain.steps):
        mean, log_variance = chain.moments(x, step, condition, scale)
        x = mean if chain.silent(step) else mean + (0.5 * log_variance).exp() * fresh_noise

Ancestral sampling (Ho et al. 2020, "Denoising Diffusion Probabilistic Models", section 2) with variances between the
posterior's and beta (Nichol and Dhariwal 2021, "Improved Denoising Diffusion Probabilistic Models", section 3.1) on a
part of the 1000 steps of the cosine schedule (section 3.2); MAR draws with 100. The last step adds no noise, as
published; with `noisy_end` it adds what its variance says, a deviation of 0.0062 to 0.0064 where tokens' own is 1. That
is another sampler, and one whose tokens have a density.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image.families.adaln import AdaLN

TRAINED = 1000  # steps
OFFSET = 0.008  # of the cosine schedule
LARGEST = 0.999  # beta


def trained_signal() -> np.ndarray:
    """`[1000]` float64: the share of the token's variance that is left after every trained step."""

    def squared(share: float) -> float:
        return math.cos((share + OFFSET) / (1 + OFFSET) * math.pi / 2) ** 2

    ends = [squared(step / TRAINED) for step in range(TRAINED + 1)]
    betas = [min(1 - end / begin, LARGEST) for begin, end in zip(ends[:-1], ends[1:], strict=True)]
    return np.cumprod(1 - np.array(betas))


def spaced(steps: int) -> list[int]:
    """Which of the trained steps `steps` evenly spaced ones are, from the first to the last."""
    stride = (TRAINED - 1) / (steps - 1) if steps > 1 else 1.0
    places, place = [], 0.0
    for _ in range(steps):
        places.append(round(place))
        place += stride
    return places


@dataclass(frozen=True)
class Schedule:
    """What the steps of a chain are, in the order they are taken: from noise to token. All `[steps]` float64.

    times: the trained steps that the head is told. betas: variance that the step undoes. posterior: variance that is
    left where the token is known, which is 0 on the last step. to_token, of_noise: the token guessed from x and the
    noise in it. from_token, from_x: the mean of the step from that guess and x.
    """

    times: np.ndarray
    betas: np.ndarray
    posterior: np.ndarray
    to_token: np.ndarray
    of_noise: np.ndarray
    from_token: np.ndarray
    from_x: np.ndarray

    @staticmethod
    def of(steps: int) -> Schedule:
        """Of a chain of that many steps. Raises InvalidArgument."""
        if not 2 <= steps <= TRAINED:
            raise InvalidArgument(f"a token cannot be drawn in {steps} steps; use 2 to {TRAINED}.")
        times = np.array(spaced(steps))
        signal = trained_signal()[times]
        before = np.append(1.0, signal[:-1])
        betas = 1 - signal / before
        made = (
            times, betas, betas * (1 - before) / (1 - signal), np.sqrt(1 / signal), np.sqrt(1 / signal - 1),
            betas * np.sqrt(before) / (1 - signal), (1 - before) * np.sqrt(1 - betas) / (1 - signal),
        )  # fmt: skip
        return Schedule(*(part[::-1].copy() for part in made))

    @cached_property
    def log_least(self) -> np.ndarray:
        """Log of the least variance a step may have; the last step, whose would be 0, has its neighbour's."""
        return np.log(np.append(self.posterior[:-1], self.posterior[-2]))

    @cached_property
    def log_most(self) -> np.ndarray:
        return np.log(self.betas)


class Chain:
    """steps: how many. temperature: what the noise of every step is multiplied with. Raises InvalidArgument."""

    def __init__(self, net: AdaLN, steps: int = 100, temperature: float = 1.0, noisy_end: bool = False) -> None:
        if not temperature > 0:
            raise InvalidArgument(f"temperature {temperature} leaves no noise to draw with; use one above 0.")
        self.net, self.steps, self.schedule = net, steps, Schedule.of(steps)
        self.cooling, self.noisy_end = 2 * math.log(temperature), noisy_end
        self.size = net.input_proj.in_features

    def silent(self, step: int) -> bool:
        """Whether the step adds no noise."""
        return step == self.steps - 1 and not self.noisy_end

    def condition(self, z: Tensor) -> Tensor:
        """z `[..., D]` as what every step is told, `[..., W]`."""
        made: Tensor = self.net.cond_embed(z)
        return made

    def moments(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance, temperature included, of x after `step`: `[N, C]` fp32 both.

        x: `[N, C]` fp32. condition: `[N, R, W]`, conditional first; R is 2 where tokens are guided, by scale `[N]`.
        Of a silent step the variance means nothing: x is the mean.
        """
        told = torch.tensor([[int(self.schedule.times[step])]], device=x.device)
        y = condition + self.net.time_embed(told)
        spread = x.to(self.net.dtype)[:, None].expand(-1, y.shape[1], -1)
        noise, share = self.net(spread, y).float().split(self.size, -1)
        epsilon = noise[:, 0]
        if noise.shape[1] == 2:
            epsilon = noise[:, 1] + scale[:, None] * (epsilon - noise[:, 1])
        part = (share[:, 0] + 1) / 2
        at = self.schedule
        token = float(at.to_token[step]) * x - float(at.of_noise[step]) * epsilon
        mean = float(at.from_token[step]) * token + float(at.from_x[step]) * x
        log_variance = part * float(at.log_most[step]) + (1 - part) * float(at.log_least[step])
        return mean, log_variance + self.cooling
