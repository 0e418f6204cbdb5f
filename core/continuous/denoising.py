"""Distribution of a latent: a denoising chain whose every step is Gaussian, given the target's hidden state.

    distribution = LatentSampler(chain)(hidden_states, tensors)   # hidden_states: [B, K, R, D]
    latents = distribution.sample(noise.at_positions(positions))  # with shared noise, [B, K, C]

With shared noise every step is drawn by layered dither: with a = σ√χ²₃, W = 2a and an offset u in (0, 1) the result is
the one point of the lattice W (Z + u) in [μ - a, μ + a). A Gaussian is a mixture of such uniforms, so the distribution
is exact; and the point depends on μ through an integer alone. Trajectories with nearby means therefore mostly get the
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
    """Diffusion head as a chain of T Gaussian denoising steps, from noise to a latent of C coordinates."""

    @property
    def latent_size(self) -> int:
        """Number of coordinates of a latent."""

    @property
    def init_std(self) -> float:
        """Standard deviation of the noise that denoising begins with."""

    @property
    def num_steps(self) -> int:
        """Number of denoising steps T."""

    def condition(self, hidden: Tensor) -> Tensor:
        """Return the conditioning `[..., W]` of all steps for hidden states `[..., D]`; computed once per token.

        Its width W is chosen by the head.
        """

    def mean_and_std(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> tuple[Tensor, float | Tensor]:
        """Return mean and standard deviation of the state after denoising step `step`, given the state x before it.

        They are those at temperature 1; the caller multiplies the standard deviation by the sampling temperature.

        Args:
            x (Tensor): [B, K, C] float32 noisy latents of C coordinates at K positions.
            step (int): Index of the denoising step, from 0, whose x is pure noise, to T - 1, which gives the latent.
            condition (Tensor): [B, R, K, W] result of `condition`, of width W, for R guidance branches (conditional,
                then unconditional).
            scale (Tensor): [B] guidance scale.

        Returns:
            tuple[Tensor, float | Tensor]: mean [B, K, C] float32, and the standard deviation: a number if it is fixed
                (0 for no noise), [B, K, C] if the head predicts it.
        """


class FixedNoiseChain(ABC):
    """Mix-in for denoising chains whose standard deviations are fixed in advance; only the means depend on x."""

    step_stds: Sequence[float]  # standard deviation of every denoising step in order; 0 is a step without noise

    @property
    def num_steps(self) -> int:
        """Number of denoising steps T."""
        return len(self.step_stds)

    def mean_and_std(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> tuple[Tensor, float]:
        """Return the mean `[B, K, C]` of x after denoising step `step`, and its fixed standard deviation."""
        return self.mean(x, step, condition, scale), self.step_stds[step]

    @abstractmethod
    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """Return the mean `[B, K, C]` float32 of x after denoising step `step`; see `DenoisingChain.mean_and_std`."""


class HasDenoisedEstimate(Protocol):
    """Denoising chain of fixed noise whose network need not be evaluated at every step."""

    step_stds: Sequence[float]

    def predict_denoised(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """Evaluate the network: return its estimate `[B, K, C]` float32 of the noise-free latent, given x at `step`."""

    def mean_towards(self, x: Tensor, step: int, denoised: Tensor) -> Tensor:
        """Return the mean `[B, K, C]` float32 of x after `step`, given the noise-free estimate; no network runs."""


@dataclass(frozen=True)
class SampledTrajectory:
    """Denoising trajectories of N latents."""

    states: Tensor  # [B, N, T+1, C] states from the initial noise to the latent
    step_distributions: list[Gaussian]  # T distributions, each of the next state given the state before it

    @staticmethod
    def concatenate(trajectories: list[SampledTrajectory]) -> SampledTrajectory:
        """Join trajectories of successive positions along the position dimension N."""
        by_step = zip(*(trajectory.step_distributions for trajectory in trajectories), strict=True)
        states = torch.cat([trajectory.states for trajectory in trajectories], 1)
        return SampledTrajectory(states, [Gaussian.concatenate(gaussians) for gaussians in by_step])

    @property
    def latents(self) -> Tensor:
        """Last states of the trajectories, the sampled latents, `[B, N, C]` float32."""
        return self.states[:, :, -1].float()


@dataclass(frozen=True)
class LatentDistribution:
    """Next-latent distribution at K positions of every sequence: a denoising chain conditioned on hidden states."""

    chain: DenoisingChain
    processed_outputs: Tensor  # [B, K, R, D] hidden states of all guidance branches
    scale: Tensor  # [B] guidance scale
    temperature: Tensor  # [B] scales the standard deviation of every step
    # Number of steps at which the head is evaluated when latents are sampled, for cheaper drafts; 0 is all. Only the
    # last state of a draft matters, and the head's estimate of it changes little from step to step.
    head_steps: int = 0

    @cached_property
    def condition(self) -> Tensor:
        """Conditioning of all denoising steps, `[B, R, K, W]`, computed once from the hidden states."""
        return self.chain.condition(self.processed_outputs.transpose(1, 2))

    @property
    def num_steps(self) -> int:
        """Number of denoising steps T."""
        return self.chain.num_steps

    def step_distribution(self, x: Tensor, step: int) -> Gaussian:
        """Return the distribution of the next state, given the state x `[B, K, C]` before denoising step `step`."""
        mean, std = self.chain.mean_and_std(x.float(), step, self.condition, self.scale)
        fixed_std = None if isinstance(std, Tensor) else std  # None: the head predicts it
        scaled_std = self.temperature[:, None, None] * std  # [B, 1, 1], or [B, K, C] if it is predicted
        return Gaussian(mean.double(), scaled_std.double(), fixed_std)

    def step_distribution_fn(self) -> Callable[[Tensor, int], Gaussian]:
        """Return `step_distribution`, or a cheaper form of it that evaluates the head at `head_steps` steps only.

        The cheaper form keeps the head's last noise-free estimate between calls, so it must be called for steps
        0 … T-1 of one trajectory in order.
        """
        if self.head_steps in (0, self.num_steps):  # 0: the head is evaluated at every step
            return self.step_distribution
        return SparseHeadSteps(self, cast(HasDenoisedEstimate, self.chain)).step_distribution

    def sample(self, positions: NoisePositions) -> Tensor:
        """Return the latents `[B, K, C]` float32 that the position-keyed noise of `positions` determines.

        Drafter and target use the same noise, so they get the same latent where their means are close.
        """
        *_, final_state = self.shared_noise_states(positions)
        return final_state.float()

    def shared_noise_states(self, positions: NoisePositions) -> Iterator[Tensor]:
        """Yield the state `[B, K, C]` float64 after every denoising step, sampled by dithered quantisation.

        N(μ, σ²) is the mixture of the uniform distributions on [μ - a, μ + a) whose half-width a is σ times the root
        of a chi-squared variate of 3 degrees of freedom. A uniform sample of that interval is obtained by rounding:
        shift a regular grid of spacing 2a by a random offset, and take its one point in the interval. Offset and a / σ
        are keyed by position, so drafter and target share the grid, and close means mostly round to the same point.
        """
        # half_widths: [T, B, K, C] in units of σ; offsets: [T, B, K, C] in units of the spacing of the grid
        initial_normals, half_widths, offsets = positions.latent_noise(self.num_steps, self.chain.latent_size)
        x, step_distribution_fn = initial_normals * self.chain.init_std, self.step_distribution_fn()
        for step in range(self.num_steps):
            gaussian = step_distribution_fn(x, step)
            x = quantise_with_dither(gaussian.mean, gaussian.std * half_widths[step], offsets[step])
            if not gaussian.is_noisy:  # some σ may be 0: its grid of spacing 0 gives NaN, and the sample is the mean
                x = torch.where(gaussian.std > 0, x, gaussian.mean)
            yield x

    def draw_normals(self, noise: Noise) -> Tensor:
        """Return fresh standard normals `[1 + T, B, K, C]` float64: of the initial state, then of every step."""
        shape = 1 + self.num_steps, self.chain.latent_size
        normals = noise.fresh_normals(self.processed_outputs.shape[1], math.prod(shape))  # [B, K, (1+T) * C]
        return normals.unflatten(2, shape).movedim(2, 0)  # [1+T, B, K, C]

    def sample_trajectory(self, normals: Tensor) -> SampledTrajectory:
        """Return the denoising trajectories of latents of C coordinates at K positions, given their noise.

        Args:
            normals (Tensor): [1 + T, B, K, C] standard normals: of the initial state, then of each of the T steps.
        """
        states, gaussians, step_distribution_fn = [normals[0] * self.chain.init_std], [], self.step_distribution_fn()
        for step in range(self.num_steps):
            gaussians.append(step_distribution_fn(states[-1], step))
            states.append(gaussians[-1].from_normals(normals[1 + step]))
        # The committed latent is float32, so verifiers must evaluate densities at the rounded value.
        states[-1] = states[-1].float().double()
        return SampledTrajectory(torch.stack(states, 2), gaussians)

    def is_allowed(self, indices: Tensor, latents: Tensor) -> Tensor:
        """Return a mask `[B, K]` of latents `[B, K, C]` that are finite; `indices` matter for token ids only."""
        return latents.isfinite().all(-1)


class SparseHeadSteps:
    """Step distributions of one denoising trajectory, with the head evaluated at `head_steps` evenly spaced steps.

    These include the first and, if there are two or more, the last. At all other steps the mean moves towards the
    head's last noise-free estimate.
    """

    def __init__(self, distribution: LatentDistribution, chain: HasDenoisedEstimate) -> None:
        self.distribution: LatentDistribution = distribution
        self.chain: HasDenoisedEstimate = chain
        count = distribution.head_steps
        last = distribution.num_steps - 1
        # `count` indices from 0 to `last`; 0 alone if `count` is 1
        self.evaluated_steps: set[int] = {round(index * last / max(1, count - 1)) for index in range(count)}
        self.denoised: Tensor | None = None  # [B, K, C] last noise-free estimate of the head

    def step_distribution(self, x: Tensor, step: int) -> Gaussian:
        """Return the distribution of the next state, given the state x `[B, K, C]` before denoising step `step`.

        Its mean moves towards the head's last estimate of the noise-free latent, which is renewed at `evaluated_steps`.
        """
        distribution, chain, x = self.distribution, self.chain, x.float()
        if step in self.evaluated_steps or self.denoised is None:  # step 0 is always evaluated
            self.denoised = chain.predict_denoised(x, step, distribution.condition, distribution.scale)
        fixed_std = chain.step_stds[step]
        scaled_std = distribution.temperature[:, None, None] * fixed_std
        return Gaussian(chain.mean_towards(x, step, self.denoised).double(), scaled_std.double(), fixed_std)


def quantise_with_dither(mean: Tensor, half_width: Tensor, offset: Tensor) -> Tensor:
    """Return the point of a regular grid that lies in the interval [mean - half_width, mean + half_width).

    The grid points are `2 * half_width * (n + offset)` for all integers n: as far apart as the interval is long, so
    that exactly one lies in it. For a uniform offset in (0, 1) that point is uniform in the interval. All tensors are
    elementwise.
    """
    width = 2 * half_width
    n = ((mean - half_width) / width - offset).ceil()  # of the first grid point that is not below the interval
    return width * (n + offset)


@dataclass(frozen=True)
class LatentSampler:
    """Sampler of latents: maps hidden states to next-latent distributions."""

    chain: DenoisingChain
    head_steps: int = 0  # number of denoising steps at which the head is evaluated; 0 is all
    stop_token_mask: Tensor | None = None  # no latent ends a sequence
    max_forced_run = 0  # no latent is forced by a grammar

    def depends_on_history(self, tensors: SamplingTensors) -> bool:
        """Return False: a distribution of latents depends on no tokens other than through the hidden states."""
        return False

    def __call__(
        self, hidden_states: Tensor, tensors: SamplingTensors, context: GenerationContext | None = None
    ) -> LatentDistribution:
        """Return the next-latent distributions given hidden states `[B, K, R, D]` of R guidance branches."""
        return self.from_processed(hidden_states, tensors)

    def from_processed(self, processed_outputs: Tensor, tensors: SamplingTensors) -> LatentDistribution:
        """Return the next-latent distributions given hidden states `[B, K, R, D]`.

        It is the counterpart of the method that takes already filtered logits of ids; latents have no filters.
        """
        return LatentDistribution(
            self.chain, processed_outputs, tensors.guidance_scale, tensors.temperature, self.head_steps
        )  # fmt: skip
