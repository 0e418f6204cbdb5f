"""The head that draws a latent: a small network that denoises it, given what the backbone says of its place.

A token is drawn by a chain of Gaussian steps from noise of standard deviation sigma_T down to sigma_0, which it keeps:

    x = head.start * noise                                   # [B, K, C] fp32, K tokens of a row
    condition = head.condition(hidden)                       # once a token
    for step, deviation in enumerate(head.deviations):
        x = head.mean(x, step, condition, scale) + deviation * noise
    read = head.embed(x)                                     # what the backbone reads for it

Noise is added to latents of unit variance (x = y + sigma * e), and the network is wrapped as in Karras et al. 2022, EDM
(arXiv 2206.00364, section 5) with sigma_data = 1. A step is the law of the noisier neighbour reversed, given the
estimate of y: Ho et al. 2020, DDPM (arXiv 2006.11239, equation 7) in these units. Its deviation does not depend on what
was drawn, and the last one is above zero. A head for every token: Li et al. 2024, MAR (arXiv 2406.11838), section 3.

Per step a few operations on little data, so what counts on CPUs is their number: what depends on the token alone is in
`condition`, what depends on the step alone is computed once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.errors import InvalidArgument
from polydraft.core.folders.networks import read_network
from polydraft.core.latent.law import FixedNoise

WAVES = 8  # frequencies of log sigma that the network sees


@dataclass(frozen=True)
class HeadConfig:
    """size: numbers a latent; hidden: the backbone's width; reading: the width of `Reading`, 0 for none; width, blocks:
    the network's; embedding: the width of what makes latents readable; time: of what makes sigma so. levels: sigma_T to
    sigma_0, a step between two of them."""

    size: int = 6
    hidden: int = 256
    reading: int = 0
    width: int = 192
    blocks: int = 3
    embedding: int = 512
    time: int = 32
    levels: tuple[float, ...] = (4.0, 2.6, 1.8, 1.25, 0.85, 0.6, 0.42, 0.3, 0.2)
    model_type: str = "polydraft-latent-head"

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))  # JSON has lists
        falling = all(a > b for a, b in zip(self.levels, self.levels[1:], strict=False))
        if len(self.levels) < 2 or not falling or self.levels[-1] <= 0:
            raise InvalidArgument(
                f"levels={list(self.levels)} is not possible; give two or more falling noise levels, all above 0."
            )


@dataclass(frozen=True)
class Step:
    """One step of the chain in numbers: the network reads `scale` * x, the mean is `keep` * x + `add` * its output."""

    sigma: float
    scale: float
    keep: float
    add: float
    deviation: float

    @staticmethod
    def between(sigma: float, following: float) -> Step:
        near = 1 / math.sqrt(1 + sigma**2)  # EDM's c_in; c_skip is its square, c_out sigma times it
        rest = (following / sigma) ** 2
        return Step(
            sigma, near, rest + (1 - rest) * near**2, (1 - rest) * sigma * near, following * math.sqrt(1 - rest)
        )


class Reading(nn.Module):
    """What the head makes of the backbone's state before it modulates with it, `[..., D]` to `[..., D]`.

    Modulation is linear in what it is given. This is not, and costs the steps of the chain nothing: once a token.
    """

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(hidden, width), nn.Linear(width, hidden)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.second(F.silu(self.first(hidden)))


class Block(nn.Module):
    """A residual block, modulated where it is widest."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        inner = self.first(F.layer_norm(x, x.shape[-1:]))
        return x + self.second(F.silu(torch.addcmul(shift, inner, scale)))


class LatentHead(FixedNoise, nn.Module):
    """See above. Weights in the model's dtype; the chain, its means and noise levels in fp32."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width, modulation = config.width, 2 * config.blocks * config.width
        self.embedding = nn.Sequential(
            nn.Linear(config.size, config.embedding), nn.SiLU(), nn.Linear(config.embedding, config.hidden)
        )
        self.reading = Reading(config.hidden, config.reading) if config.reading else nn.Identity()
        self.conditioning = nn.Linear(config.hidden, modulation)
        self.time = nn.Sequential(nn.Linear(2 * WAVES, config.time), nn.SiLU(), nn.Linear(config.time, modulation))
        self.enter, self.leave = nn.Linear(config.size, width), nn.Linear(width, config.size)
        self.blocks = nn.ModuleList(Block(width) for _ in range(config.blocks))
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)
        with torch.no_grad():
            self.conditioning.bias.view(config.blocks, 2, width)[:, 0] += 1  # scales begin around one
        self.use(config)

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Return the head saved in `folder` (config.json, model.safetensors), in fp32."""
        return read_network(HeadConfig, cls, folder)

    def use(self, config: HeadConfig) -> None:
        self.config = config
        self.numbers = [Step.between(*pair) for pair in zip(config.levels, config.levels[1:], strict=False)]
        self._times: dict[int, Tensor] = {}

    def set_levels(self, levels: tuple[float, ...]) -> None:
        """Other noise levels from now on, as many as one likes; the network knows all between those of its training."""
        self.use(replace(self.config, levels=levels))

    def train(self, mode: bool = True) -> Self:
        self._times = {}
        return super().train(mode)

    def _apply(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # nn.Module's own; dtype or device change
        self._times = {}
        return super()._apply(*args, **kwargs)

    @property
    def size(self) -> int:
        """Numbers a latent."""
        return self.config.size

    @property
    def noise(self) -> float:
        """Standard deviation that a drawn token keeps."""
        return self.config.levels[-1]

    @property
    def start(self) -> float:
        """Standard deviation of what the chain begins with."""
        return math.sqrt(1 + self.config.levels[0] ** 2)

    @property
    def deviations(self) -> list[float]:  # type: ignore[override]
        """Standard deviation of every step."""
        return [step.deviation for step in self.numbers]

    @property
    def dtype(self) -> torch.dtype:
        return self.enter.weight.dtype

    def embed(self, latents: Tensor) -> Tensor:
        """What the backbone reads for tokens, `[..., C]` to `[..., D]`."""
        read: Tensor = self.embedding(latents.to(self.dtype))
        return read

    def condition(self, hidden: Tensor) -> Tensor:
        """What the network needs of the backbone's state, `[..., D]` to `[..., W]`."""
        said: Tensor = self.conditioning(self.reading(hidden.to(self.dtype)))
        return said

    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """Mean of `x` after `step`, `[B, K, C]` fp32. condition: `[B, R, K, W]`; of two branches the first has the
        caption, and `scale` `[B]` says how far to go from the second to the first and beyond."""
        now = self.numbers[step]
        said = self.network(x[:, None] * now.scale, condition, self.at(step))
        if said.shape[1] == 2:
            guided = torch.lerp(said[:, 1], said[:, 0], scale.view(-1, 1, 1).to(said.dtype))
        else:
            guided = said[:, 0]
        return torch.add(x * now.keep, guided, alpha=now.add)

    def denoised(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """The estimate of y that `mean` goes towards, `[B, K, C]` fp32."""
        now = self.numbers[step]
        said = self.network(x[:, None] * now.scale, condition, self.at(step))
        both = said.shape[1] == 2
        guided = torch.lerp(said[:, 1], said[:, 0], scale.view(-1, 1, 1).to(said.dtype)) if both else said[:, 0]
        return torch.add(x * now.scale**2, guided, alpha=now.sigma * now.scale)

    def towards(self, x: Tensor, step: int, denoised: Tensor) -> Tensor:
        """The mean of x after `step`, for whoever has `denoised`."""
        sigma, following = self.config.levels[step : step + 2]
        return torch.lerp(denoised, x, (following / sigma) ** 2)

    def denoise(self, x: Tensor, sigma: Tensor, condition: Tensor) -> Tensor:
        """The estimate of y, `[..., C]` fp32, of `x` = y + sigma * e; sigma: `[..., 1]`."""
        near = (1 + sigma.square()).rsqrt()
        return near.square() * x + sigma * near * self.network(x * near, condition, self.times(sigma))

    def network(self, x: Tensor, condition: Tensor, time: Tensor) -> Tensor:
        """x: `[..., C]` of unit variance; condition and time: `[..., W]`."""
        scales_and_shifts = (condition + time).chunk(2 * len(self.blocks), -1)
        inner = self.enter(x.to(self.dtype))
        for index, block in enumerate(self.blocks):
            inner = block(inner, *scales_and_shifts[2 * index : 2 * index + 2])
        said: Tensor = self.leave(F.layer_norm(inner, inner.shape[-1:])).float()
        return said

    def times(self, sigma: Tensor) -> Tensor:
        """What the network needs of noise levels, `[..., 1]` to `[..., W]`."""
        angles = sigma.log() * torch.arange(1, WAVES + 1, device=sigma.device) / 2
        said: Tensor = self.time(torch.cat([angles.cos(), angles.sin()], -1).to(self.dtype))
        return said

    def at(self, step: int) -> Tensor:
        """`times` of a step's noise level, kept where weights don't change."""
        sigma = torch.tensor([self.numbers[step].sigma], device=self.enter.weight.device)
        if self.training or torch.is_grad_enabled():
            return self.times(sigma)
        if step not in self._times:
            self._times[step] = self.times(sigma)
        return self._times[step]
