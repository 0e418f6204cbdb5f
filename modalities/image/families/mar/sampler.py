"""Distributions of the next set of tokens, given the hidden states of its positions, with each set's own guidance."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from polydraft.core.continuous.denoising import LatentDistribution
from polydraft.core.continuous.gaussian import Gaussian
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.params import SamplingTensors
from polydraft.modalities.image.families.mar.head import SetChain
from polydraft.modalities.image.families.mar.masking import MaskingSchedule


@dataclass(frozen=True)
class SetDistribution(LatentDistribution):
    """Distribution of sets over all denoising steps."""

    real: Tensor = field(kw_only=True)  # [B, K, S · C] bool, values that the set has; others are 0

    def step_distribution(self, x: Tensor, step: int) -> Gaussian:
        gaussian = super().step_distribution(x, step)
        mean = torch.where(self.real, gaussian.mean, 0)
        return replace(gaussian, mean=mean, std=torch.where(self.real, gaussian.std, 0))


@dataclass(frozen=True)
class SetSampler:
    """Sampler of sets from hidden states `[B, K, R, S · D]`."""

    chain: SetChain
    masking: MaskingSchedule
    stop_token_mask: Tensor | None = None  # an image has no end token
    max_forced_run = 0

    def depends_on_history(self, settings: SamplingTensors) -> bool:
        return True  # it needs the index of the set

    def __call__(
        self, hidden: Tensor, settings: SamplingTensors, history: GenerationContext | None = None
    ) -> SetDistribution:
        assert history is not None
        return self.at(hidden, settings, history.positions)

    def at(self, hidden: Tensor, settings: SamplingTensors, t: Tensor) -> SetDistribution:
        """Return the distributions of the sets t `[B, K]`."""
        set_index = t.clamp(max=len(self.masking) - 1)
        sizes, progress = torch.tensor(self.masking.sizes).to(t.device), self.masking.progress.to(t.device)
        values = torch.arange(self.chain.latent_size, device=t.device)
        is_real = values < self.chain.token_dim * sizes[set_index][..., None]
        scale = 1 + (settings.guidance_scale[:, None] - 1) * progress[set_index]
        return SetDistribution(self.chain, hidden, scale, settings.temperature, real=is_real)
