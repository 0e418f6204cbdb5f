"""The steps of MAR's chains: which of the trained ones they are, and what each makes of x and the noise guessed in it.

    schedule = Schedule.of(100)
    token = schedule.to_token[step] * x - schedule.of_noise[step] * noise

Ancestral sampling (Ho et al. 2020, "Denoising Diffusion Probabilistic Models", section 2) with variances between the
posterior's and beta (Nichol and Dhariwal 2021, "Improved Denoising Diffusion Probabilistic Models", section 3.1) on a
part of the 1000 steps of the cosine schedule (section 3.2); MAR draws with 100.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polydraft.core.errors import InvalidArgument

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
