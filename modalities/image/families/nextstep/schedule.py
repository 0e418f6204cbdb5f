"""Sampling steps of NextStep's tokens: a stochastic differential equation in a few Gaussian steps of known variance.

    schedule = PUBLISHED_SCHEDULES["1.1"]
    schedule.times, schedule.step_sizes, schedule.step_stds    # start and length of each step, and its noise

The flow runs from noise (time 0) to the token (time 1), with velocity v(x, t) = E[token - noise | x]. A step of length
d from time t moves x by d · (v + (1 - t) · score) and adds noise of variance 2 (1 - t) d; the score of that flow is
(t v - x) / (1 - t), so the mean is x + d · ((1 + t) v - x) (NextStep-1, arXiv 2508.10711; Ma et al. 2024, "SiT", arXiv
2401.08740, section 2). NextStep-1 ends with one step along v alone, without noise; NextStep-1.1 adds noise after every
step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from polydraft.core.errors import InvalidArgument


@dataclass(frozen=True)
class FlowSchedule:
    """Sampling steps of a flow.

    Raises:
        InvalidArgument: there are no such steps.
    """

    steps: int
    shift: float = 1.0  # above 1, steps are shorter near the noise
    last: float = 0.0  # length of a last step without noise, or 0
    normalises_tokens: bool = False  # to mean 0 and variance 1, before anything reads them

    def __post_init__(self) -> None:
        min_steps = 2 if self.last else 1
        if self.steps < min_steps or self.shift <= 0 or not 0 <= self.last < 1:
            raise InvalidArgument(
                f"a token cannot be sampled in {self.steps} steps with shift {self.shift} and a last step of "
                f"{self.last}; use at least {min_steps} steps, a shift above 0 and a last step below 1."
            )

    @cached_property
    def boundaries(self) -> Tensor:
        """Return `[steps + 1]` fp32, the start of every step and the end of the last one."""
        points = self.steps + (0 if self.last else 1)
        even = torch.linspace(0, 1 - self.last, points, device="cpu")[: self.steps]
        starts = even / (self.shift - (self.shift - 1) * even)
        end = starts[-1:] + self.last if self.last else torch.ones(1, device="cpu")
        return torch.cat([starts, end])

    @cached_property
    def times(self) -> list[float]:
        """Return the start of every step."""
        return [float(time) for time in self.boundaries[:-1]]

    @cached_property
    def step_sizes(self) -> list[float]:
        """Return the length of every step."""
        spans = [float(span) for span in self.boundaries.diff()]
        return [*spans[:-1], self.last] if self.last else spans

    @cached_property
    def step_stds(self) -> list[float]:
        """Return the standard deviation of the noise after every step."""
        noisy = self.steps - (1 if self.last else 0)
        stds = [
            (2 * (1 - time) * step_size) ** 0.5 for time, step_size in zip(self.times, self.step_sizes, strict=True)
        ]
        return [std if step < noisy else 0.0 for step, std in enumerate(stds)]


PUBLISHED_SCHEDULES = {
    "1": FlowSchedule(50, last=0.04, normalises_tokens=True),
    "1.1": FlowSchedule(28),
}  # by release
