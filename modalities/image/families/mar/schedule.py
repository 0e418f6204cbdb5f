"""Diffusion steps of MAR: which of the trained steps are taken, and the coefficients of each.

    schedule = DiffusionSchedule.for_steps(100)
    token = schedule.token_x_coef[step] * x - schedule.token_noise_coef[step] * noise

Ancestral sampling (Ho et al. 2020, "Denoising Diffusion Probabilistic Models", section 2) with variances between the
posterior's and beta (Nichol and Dhariwal 2021, "Improved Denoising Diffusion Probabilistic Models", section 3.1) on a
part of the 1000 steps of the cosine schedule (section 3.2); MAR uses 100.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polydraft.core.errors import InvalidArgument

NUM_TRAINED_STEPS = 1000  # steps
OFFSET = 0.008  # of the cosine schedule
MAX_BETA = 0.999  # beta


def alphas_cumprod() -> np.ndarray:
    """Return `[1000]` float64, the share of the token's variance that is left after every trained step."""

    def squared(share: float) -> float:
        return math.cos((share + OFFSET) / (1 + OFFSET) * math.pi / 2) ** 2

    signal_shares = [squared(step / NUM_TRAINED_STEPS) for step in range(NUM_TRAINED_STEPS + 1)]
    betas = [min(1 - end / begin, MAX_BETA) for begin, end in zip(signal_shares[:-1], signal_shares[1:], strict=True)]
    return np.cumprod(1 - np.array(betas))


def spaced_timesteps(steps: int) -> list[int]:
    """Return `steps` evenly spaced indices of trained steps, from the first to the last."""
    stride = (NUM_TRAINED_STEPS - 1) / (steps - 1) if steps > 1 else 1.0
    timesteps, position = [], 0.0
    for _ in range(steps):
        timesteps.append(round(position))
        position += stride
    return timesteps


@dataclass(frozen=True)
class DiffusionSchedule:
    """Coefficients of a chain's steps in the order they are taken, from noise to token; all `[steps]` float64."""

    timesteps: np.ndarray  # trained steps, which the head reads
    betas: np.ndarray  # variance that the step removes
    posterior_variance: np.ndarray  # variance that is left where the token is known; 0 on the last step
    token_x_coef: np.ndarray  # of x, in the token that is predicted from x and the noise in it
    token_noise_coef: np.ndarray  # of the noise, in that token
    mean_token_coef: np.ndarray  # of that token, in the step's mean
    mean_x_coef: np.ndarray  # of x, in the step's mean

    @staticmethod
    def for_steps(steps: int) -> DiffusionSchedule:
        """Build the schedule of a chain with so many steps.

        Raises:
            InvalidArgument: the number is not possible.
        """
        if not 2 <= steps <= NUM_TRAINED_STEPS:
            raise InvalidArgument(f"a token cannot be sampled in {steps} steps; use 2 to {NUM_TRAINED_STEPS}.")
        times = np.array(spaced_timesteps(steps))
        signal = alphas_cumprod()[times]
        previous_signal = np.append(1.0, signal[:-1])
        betas = 1 - signal / previous_signal
        coefficients = (
            times, betas, betas * (1 - previous_signal) / (1 - signal), np.sqrt(1 / signal), np.sqrt(1 / signal - 1),
            betas * np.sqrt(previous_signal) / (1 - signal), (1 - previous_signal) * np.sqrt(1 - betas) / (1 - signal),
        )  # fmt: skip
        return DiffusionSchedule(*(part[::-1].copy() for part in coefficients))

    @cached_property
    def log_min_variance(self) -> np.ndarray:
        """Return the log of the least variance of a step; the last step, whose would be 0, has its neighbour's."""
        return np.log(np.append(self.posterior_variance[:-1], self.posterior_variance[-2]))

    @cached_property
    def log_max_variance(self) -> np.ndarray:
        """Return the log of the largest variance of a step."""
        return np.log(self.betas)
