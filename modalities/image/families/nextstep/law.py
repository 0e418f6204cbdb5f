"""The sampler of NextStep's tokens: a stochastic differential equation in a few Gaussian steps of known variance.

    law = PUBLISHED["1.1"]
    law.times, law.spans, law.deviations    # where each step starts, how long it is, how much noise follows it

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
class Law:
    """steps: in all. shift: above 1, steps are shorter near the noise. last: length of a last step without noise, or 0.

    normed: whether a drawn token is brought to mean 0 and variance 1 before anything reads it. Raises InvalidArgument.
    """

    steps: int
    shift: float = 1.0
    last: float = 0.0
    normed: bool = False

    def __post_init__(self) -> None:
        least = 2 if self.last else 1
        if self.steps < least or self.shift <= 0 or not 0 <= self.last < 1:
            raise InvalidArgument(
                f"a token cannot be drawn in {self.steps} steps with shift {self.shift} and a last step of "
                f"{self.last}; use at least {least} steps, a shift above 0 and a last step below 1."
            )

    @cached_property
    def grid(self) -> Tensor:
        """`[steps + 1]` fp32: where steps start, and where the last one ends."""
        points = self.steps + (0 if self.last else 1)
        even = torch.linspace(0, 1 - self.last, points, device="cpu")[: self.steps]
        starts = even / (self.shift - (self.shift - 1) * even)
        end = starts[-1:] + self.last if self.last else torch.ones(1, device="cpu")
        return torch.cat([starts, end])

    @cached_property
    def times(self) -> list[float]:
        """Where every step starts."""
        return [float(time) for time in self.grid[:-1]]

    @cached_property
    def spans(self) -> list[float]:
        """How long every step is."""
        spans = [float(span) for span in self.grid.diff()]
        return [*spans[:-1], self.last] if self.last else spans

    @cached_property
    def deviations(self) -> list[float]:
        """Standard deviation of the noise after every step."""
        noisy = self.steps - (1 if self.last else 0)
        made = [(2 * (1 - time) * span) ** 0.5 for time, span in zip(self.times, self.spans, strict=True)]
        return [deviation if step < noisy else 0.0 for step, deviation in enumerate(made)]


PUBLISHED = {"1": Law(50, last=0.04, normed=True), "1.1": Law(28)}  # as their makers call them
