"""Diffusion head for latents: a small network that denoises a token, given the backbone's hidden state.

A token is sampled by a chain of Gaussian steps from noise of standard deviation sigma_T down to sigma_0, which stays:

    x = head.init_std * noise                                   # [B, K, C] fp32, K tokens of a row
    condition = head.condition(hidden)                       # once per token
    for step, std in enumerate(head.step_stds):
        x = head.mean(x, step, condition, scale) + std * noise
    embedded = head.embed(x)                                 # the backbone's input for it

Noise is added to latents of unit variance (x = y + sigma * e), and the network is wrapped as in Karras et al. 2022, EDM
(arXiv 2206.00364, section 5) with sigma_data = 1. A step is the posterior of the less noisy latent, given the estimate
of y: Ho et al. 2020, DDPM (arXiv 2006.11239, equation 7) in these units. Its deviation does not depend on the sample,
and the last one is above zero. A head for every token: Li et al. 2024, MAR (arXiv 2406.11838), section 3.

A step is a few operations on little data, so what counts on CPUs is their number: what depends only on the token is in
`condition`, what depends only on the step is computed once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.continuous.denoising import FixedNoiseChain
from polydraft.core.errors import InvalidArgument
from polydraft.core.folders.networks import read_network

NUM_FREQUENCIES = 8  # of log sigma, in its embedding


@dataclass(frozen=True)
class LatentHeadConfig:
    """Shape of the head."""

    size: int = 6  # values of a latent
    hidden: int = 256  # width of the backbone
    reading: int = 0  # width of `ConditionMLP`; 0 for none
    width: int = 192  # of the network
    blocks: int = 3  # of the network
    embedding: int = 512  # width of the embedding of latents
    time: int = 32  # width of the embedding of sigma
    # noise levels from sigma_T to sigma_0, a step between two of them
    levels: tuple[float, ...] = (4.0, 2.6, 1.8, 1.25, 0.85, 0.6, 0.42, 0.3, 0.2)
    model_type: str = "polydraft-latent-head"

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))  # JSON has lists
        is_falling = all(a > b for a, b in zip(self.levels, self.levels[1:], strict=False))
        if len(self.levels) < 2 or not is_falling or self.levels[-1] <= 0:
            raise InvalidArgument(
                f"levels={list(self.levels)} is not possible; give two or more falling noise levels, all above 0."
            )


@dataclass(frozen=True)
class DenoisingStep:
    """Coefficients of a step: the network reads `input_scale * x`; the mean is `x_coef * x + output_coef * output`."""

    sigma: float
    input_scale: float
    x_coef: float
    output_coef: float
    deviation: float

    @staticmethod
    def from_sigmas(sigma: float, next_sigma: float) -> DenoisingStep:
        """Return the coefficients of the step from one noise level to the next."""
        c_in = 1 / math.sqrt(1 + sigma**2)  # EDM's c_in; c_skip is its square, c_out sigma times it
        ratio = (next_sigma / sigma) ** 2
        return DenoisingStep(
            sigma, c_in, ratio + (1 - ratio) * c_in**2, (1 - ratio) * sigma * c_in, next_sigma * math.sqrt(1 - ratio)
        )


class ConditionMLP(nn.Module):
    """Residual MLP on the backbone's hidden state before it modulates the network, `[..., D]` to `[..., D]`.

    Modulation is linear in its input. This is not, and runs once per token, so that it costs the steps nothing.
    """

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.first: nn.Linear = nn.Linear(hidden, width)
        self.second: nn.Linear = nn.Linear(width, hidden)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.second(F.silu(self.first(hidden)))


class ModulatedBlock(nn.Module):
    """Residual block, modulated in the middle."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first: nn.Linear = nn.Linear(width, width)
        self.second: nn.Linear = nn.Linear(width, width)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        inner = self.first(F.layer_norm(x, x.shape[-1:]))
        return x + self.second(F.silu(torch.addcmul(shift, inner, scale)))


class LatentHead(FixedNoiseChain, nn.Module):
    """Diffusion head of latents; weights in the model's dtype, the chain, its means and noise levels in fp32."""

    def __init__(self, config: LatentHeadConfig) -> None:
        super().__init__()
        width, modulation = config.width, 2 * config.blocks * config.width
        self.embedding: nn.Sequential = nn.Sequential(
            nn.Linear(config.size, config.embedding), nn.SiLU(), nn.Linear(config.embedding, config.hidden)
        )
        self.reading: ConditionMLP | nn.Identity
        self.reading = ConditionMLP(config.hidden, config.reading) if config.reading else nn.Identity()
        self.conditioning: nn.Linear = nn.Linear(config.hidden, modulation)
        self.time: nn.Sequential = nn.Sequential(
            nn.Linear(2 * NUM_FREQUENCIES, config.time), nn.SiLU(), nn.Linear(config.time, modulation)
        )
        self.enter: nn.Linear = nn.Linear(config.size, width)
        self.leave: nn.Linear = nn.Linear(width, config.size)
        self.blocks: nn.ModuleList = nn.ModuleList(ModulatedBlock(width) for _ in range(config.blocks))
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)
        with torch.no_grad():
            self.conditioning.bias.view(config.blocks, 2, width)[:, 0] += 1  # scales start around one
        self.set_config(config)

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Load the head saved in `folder` (config.json, model.safetensors), in fp32."""
        return read_network(LatentHeadConfig, cls, folder)

    def set_config(self, config: LatentHeadConfig) -> None:
        """Set the configuration and the step coefficients that follow from it."""
        self.config = config
        self.step_coefficients: list[DenoisingStep] = [
            DenoisingStep.from_sigmas(*pair) for pair in zip(config.levels, config.levels[1:], strict=False)
        ]
        self._step_embeddings: dict[int, Tensor] = {}

    def set_levels(self, levels: tuple[float, ...]) -> None:
        """Set other noise levels, of any number; the network knows all between those of its training."""
        self.set_config(replace(self.config, levels=levels))

    def train(self, mode: bool = True) -> Self:
        self._step_embeddings = {}
        return super().train(mode)

    def _apply(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # nn.Module's own; dtype or device change
        self._step_embeddings = {}
        return super()._apply(*args, **kwargs)

    @property
    def latent_size(self) -> int:
        """Return the number of values of a latent."""
        return self.config.size

    @property
    def noise(self) -> float:
        """Return the standard deviation of the noise that a sampled token keeps."""
        return self.config.levels[-1]

    @property
    def init_std(self) -> float:
        """Return the standard deviation of the chain's first sample."""
        return math.sqrt(1 + self.config.levels[0] ** 2)

    @property
    def step_stds(self) -> list[float]:  # type: ignore[override]
        """Return the standard deviation of every step."""
        return [step.deviation for step in self.step_coefficients]

    @property
    def dtype(self) -> torch.dtype:
        return self.enter.weight.dtype

    def embed(self, latents: Tensor) -> Tensor:
        """Return the backbone's inputs for tokens, `[..., C]` to `[..., D]`."""
        embedded: Tensor = self.embedding(latents.to(self.dtype))
        return embedded

    def condition(self, hidden: Tensor) -> Tensor:
        """Return the network's condition for hidden states, `[..., D]` to `[..., W]`."""
        output: Tensor = self.conditioning(self.reading(hidden.to(self.dtype)))
        return output

    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """Return the mean of `x` after `step`.

        Args:
            x (Tensor): `[B, K, C]` fp32.
            step (int): index of the step.
            condition (Tensor): `[B, R, K, W]`; of two guidance branches the first is the conditional one.
            scale (Tensor): `[B]` guidance scales.

        Returns:
            Tensor: `[B, K, C]` fp32.
        """
        coefficients = self.step_coefficients[step]
        output = self.network_output(x[:, None] * coefficients.input_scale, condition, self.step_embedding(step))
        if output.shape[1] == 2:
            guided = torch.lerp(output[:, 1], output[:, 0], scale.view(-1, 1, 1).to(output.dtype))
        else:
            guided = output[:, 0]
        return torch.add(x * coefficients.x_coef, guided, alpha=coefficients.output_coef)

    def predict_denoised(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """Return the estimate of y that `mean` moves towards, `[B, K, C]` fp32."""
        coefficients = self.step_coefficients[step]
        output = self.network_output(x[:, None] * coefficients.input_scale, condition, self.step_embedding(step))
        is_guided = output.shape[1] == 2
        guided = (
            torch.lerp(output[:, 1], output[:, 0], scale.view(-1, 1, 1).to(output.dtype)) if is_guided else output[:, 0]
        )
        return torch.add(x * coefficients.input_scale**2, guided, alpha=coefficients.sigma * coefficients.input_scale)

    def mean_towards(self, x: Tensor, step: int, denoised: Tensor) -> Tensor:
        """Return the mean of x after `step` for a given estimate of y."""
        sigma, next_sigma = self.config.levels[step : step + 2]
        return torch.lerp(denoised, x, (next_sigma / sigma) ** 2)

    def denoise(self, x: Tensor, sigma: Tensor, condition: Tensor) -> Tensor:
        """Return the estimate of y, `[..., C]` fp32, for `x` = y + sigma * e; sigma is `[..., 1]`."""
        c_in = (1 + sigma.square()).rsqrt()
        return c_in.square() * x + sigma * c_in * self.network_output(x * c_in, condition, self.embed_sigma(sigma))

    def network_output(self, x: Tensor, condition: Tensor, time: Tensor) -> Tensor:
        """Return the network's output for unit-variance `x` `[..., C]`; condition and time are `[..., W]`."""
        scales_and_shifts = (condition + time).chunk(2 * len(self.blocks), -1)
        inner = self.enter(x.to(self.dtype))
        for index, block in enumerate(self.blocks):
            inner = block(inner, *scales_and_shifts[2 * index : 2 * index + 2])
        output: Tensor = self.leave(F.layer_norm(inner, inner.shape[-1:])).float()
        return output

    def embed_sigma(self, sigma: Tensor) -> Tensor:
        """Embed noise levels, `[..., 1]` to `[..., W]`."""
        angles = sigma.log() * torch.arange(1, NUM_FREQUENCIES + 1, device=sigma.device) / 2
        output: Tensor = self.time(torch.cat([angles.cos(), angles.sin()], -1).to(self.dtype))
        return output

    def step_embedding(self, step: int) -> Tensor:
        """Return the embedding of a step's noise level, cached while weights do not change."""
        sigma = torch.tensor([self.step_coefficients[step].sigma], device=self.enter.weight.device)
        if self.training or torch.is_grad_enabled():
            return self.embed_sigma(sigma)
        if step not in self._step_embeddings:
            self._step_embeddings[step] = self.embed_sigma(sigma)
        return self._step_embeddings[step]
