"""Distribution of a latent: a denoising chain whose every step is Gaussian, given the target's hidden state.

    distribution = LatentSampler(chain)(hidden_states, tensors)   # hidden_states: [B, K, R, D]
    latents = distribution.sample(noise.at_positions(positions))  # with shared noise, [B, K, C]

With shared noise every step is drawn by layered dither: with a = σ√χ²₃, W = 2a and an offset u in (0, 1) the result is
the one point of the lattice W (Z + u) in [μ - a, μ + a). A Gaussian is a mixture of such uniforms, so the distribution
is exact; and the point depends on μ through an integer alone. Two chains with nearby means therefore mostly draw the
very same numbers, and verifying a draft is comparing latents. It needs the same σ in both chains, and σ > 0 at the last
step: if a chain ends without noise, two latents are equal only if all states before them were, and no draft is of use.
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

from polydraft.core.continuous.gaussian import Gaussian
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.noise import Noise, NoisePositions
from polydraft.core.sampling.params import SamplingTensors


class DenoisingChain(Protocol):
    """Diffusion head as a chain of Gaussian steps."""

    @property
    def size(self) -> int:
        """Number of coordinates of a latent."""

    @property
    def init_std(self) -> float:
        """Standard deviation of the noise that the chain begins with."""

    @property
    def num_steps(self) -> int:
        """Number of steps."""

    def condition(self, hidden: Tensor) -> Tensor:
        """Return the conditioning of the steps, `[..., W]`, for hidden states `[..., D]`; computed once per token."""

    def mean_and_std(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> tuple[Tensor, float | Tensor]:
        """Return mean and standard deviation of x after `step`, before temperature.

        Args:
            x (Tensor): [B, K, C] float32.
            step (int): Index of the step.
            condition (Tensor): [B, R, K, W] of the guidance branches (conditional, then unconditional).
            scale (Tensor): [B] guidance scale.

        Returns:
            tuple[Tensor, float | Tensor]: mean [B, K, C] float32, and the standard deviation: a number if it is fixed
                (0 for no noise), [B, K, C] if it is learnt.
        """


class FixedNoiseChain(ABC):
    """Mix-in for chains whose standard deviations do not depend on what is drawn."""

    step_stds: Sequence[float]  # of every step in order; 0 is a step without noise

    @property
    def num_steps(self) -> int:
        return len(self.step_stds)

    def mean_and_std(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> tuple[Tensor, float]:
        return self.mean(x, step, condition, scale), self.step_stds[step]

    @abstractmethod
    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """Return the mean of x after `step`, `[B, K, C]` float32; see `DenoisingChain.mean_and_std`."""


class HasDenoisedEstimate(Protocol):
    """Chain of fixed noise whose head need not be evaluated at every step."""

    step_stds: Sequence[float]

    def predict_denoised(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """Return the estimate of the latent without noise, `[B, K, C]` float32, towards which the mean moves."""

    def mean_towards(self, x: Tensor, step: int, denoised: Tensor) -> Tensor:
        """Return the mean of x after `step`, `[B, K, C]` float32, given the estimate `denoised`."""


@dataclass(frozen=True)
class SampledTrajectory:
    """Denoising trajectories of drafted latents."""

    states: Tensor  # [B, N, T+1, C] states from first to last
    steps: list[Gaussian]  # distribution of every step, given the state before it

    @staticmethod
    def concatenate(trajectories: list[SampledTrajectory]) -> SampledTrajectory:
        """Join trajectories along the columns."""
        steps = zip(*(trajectory.steps for trajectory in trajectories), strict=True)
        states = torch.cat([trajectory.states for trajectory in trajectories], 1)
        return SampledTrajectory(states, [Gaussian.concatenate(step) for step in steps])

    @property
    def latents(self) -> Tensor:
        """Last states, `[B, N, C]` float32."""
        return self.states[:, :, -1].float()


@dataclass(frozen=True)
class LatentDistribution:
    """Next-latent distribution at every scored position: a denoising chain, given hidden states."""

    chain: DenoisingChain
    processed_outputs: Tensor  # [B, K, R, D] hidden states of all guidance branches
    scale: Tensor  # [B] guidance scale
    temperature: Tensor  # [B] scales the standard deviation of every step
    # Steps at which the head is evaluated when latents are drawn, for cheaper drafts; 0 is all. Only the end of a
    # draft's chain matters, and the head's estimate of it changes little from step to step.
    head_steps: int = 0

    @cached_property
    def condition(self) -> Tensor:
        return self.chain.condition(self.processed_outputs.transpose(1, 2))

    @property
    def num_steps(self) -> int:
        return self.chain.num_steps

    def step(self, x: Tensor, step: int) -> Gaussian:
        """Return the distribution of x `[B, K, C]` after `step`."""
        mean, std = self.chain.mean_and_std(x.float(), step, self.condition, self.scale)
        fixed_std = None if isinstance(std, Tensor) else std
        scaled_std = self.temperature[:, None, None] * std
        return Gaussian(mean.double(), scaled_std.double(), fixed_std)

    def step_function(self) -> Callable[[Tensor, int], Gaussian]:
        """Return a function like `step`, to be called with the steps of one trajectory in order."""
        if self.head_steps in (0, self.num_steps):
            return self.step
        return SparseHeadSteps(self, cast(HasDenoisedEstimate, self.chain)).step

    def sample(self, positions: NoisePositions) -> Tensor:
        """Return the latents that the shared noise at `positions` draws, `[B, K, C]` float32."""
        *_, last = self.shared_noise_states(positions)
        return last.float()

    def shared_noise_states(self, positions: NoisePositions) -> Iterator[Tensor]:
        """Yield the state that the shared noise at `positions` draws after every step, `[B, K, C]` float64."""
        init, widths, offsets = positions.latent_noise(self.num_steps, self.chain.size)
        x, step_function = init * self.chain.init_std, self.step_function()
        for step in range(self.num_steps):
            gaussian = step_function(x, step)
            x = quantise_with_dither(gaussian.mean, gaussian.std * widths[step], offsets[step])
            if not gaussian.is_noisy:
                x = torch.where(gaussian.std > 0, x, gaussian.mean)
            yield x

    def draw_normals(self, noise: Noise) -> Tensor:
        """Return standard normals `[1 + T, B, K, C]` float64 of the fresh stream, for `sample_trajectory`."""
        shape = 1 + self.num_steps, self.chain.size
        normals = noise.fresh_normals(self.processed_outputs.shape[1], math.prod(shape))
        return normals.unflatten(2, shape).movedim(2, 0)

    def sample_trajectory(self, normals: Tensor) -> SampledTrajectory:
        """Return the trajectories that Gaussian noise `normals` `[1 + T, B, K, C]` drives."""
        states, steps, step_function = [normals[0] * self.chain.init_std], [], self.step_function()
        for step in range(self.num_steps):
            steps.append(step_function(states[-1], step))
            states.append(steps[-1].from_normals(normals[1 + step]))
        # the token itself is float32, and whatever follows it depends on no other number
        states[-1] = states[-1].float().double()
        return SampledTrajectory(torch.stack(states, 2), steps)

    def is_allowed(self, indices: Tensor, latents: Tensor) -> Tensor:
        """Return a mask `[B, K]` of latents `[B, K, C]` that are finite."""
        return latents.isfinite().all(-1)


class SparseHeadSteps:
    """Steps of one trajectory whose head is evaluated at some of them, the first among them."""

    def __init__(self, distribution: LatentDistribution, chain: HasDenoisedEstimate) -> None:
        self.distribution, self.chain, count = distribution, chain, distribution.head_steps
        last = distribution.num_steps - 1
        self.evaluated_steps = {round(index * last / max(1, count - 1)) for index in range(count)}
        self.denoised: Tensor | None = None  # last estimate of the head

    def step(self, x: Tensor, step: int) -> Gaussian:
        """Return the distribution of x after `step`, with a mean that moves towards the head's last estimate."""
        distribution, chain, x = self.distribution, self.chain, x.float()
        if step in self.evaluated_steps or self.denoised is None:
            self.denoised = chain.predict_denoised(x, step, distribution.condition, distribution.scale)
        fixed_std = chain.step_stds[step]
        scaled_std = distribution.temperature[:, None, None] * fixed_std
        return Gaussian(chain.mean_towards(x, step, self.denoised).double(), scaled_std.double(), fixed_std)


def quantise_with_dither(mean: Tensor, half: Tensor, offset: Tensor) -> Tensor:
    """Return the point of the lattice `2 half (Z + offset)` in [mean - half, mean + half)."""
    width = 2 * half
    return width * (((mean - half) / width - offset).ceil() + offset)


@dataclass(frozen=True)
class LatentSampler:
    """Sampler of latents: maps hidden states to next-latent distributions."""

    chain: DenoisingChain
    head_steps: int = 0  # see `LatentDistribution`
    stop_token_mask: Tensor | None = None  # no latent ends a sequence
    max_forced_run = 0

    def depends_on_history(self, tensors: SamplingTensors) -> bool:
        return False

    def __call__(
        self, hidden_states: Tensor, tensors: SamplingTensors, context: GenerationContext | None = None
    ) -> LatentDistribution:
        """Return the distributions given hidden states `[B, K, R, D]`."""
        return self.from_processed(hidden_states, tensors)

    def from_processed(self, processed_outputs: Tensor, tensors: SamplingTensors) -> LatentDistribution:
        """Return the distributions given hidden states `[B, K, R, D]`; latents need no further processing."""
        return LatentDistribution(
            self.chain, processed_outputs, tensors.guidance_scale, tensors.temperature, self.head_steps
        )  # fmt: skip
