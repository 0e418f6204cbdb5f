"""What set may come next, given the hidden states of its places: laws of the core, with each set's own guidance."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from polydraft.core.latent.gaussian import Gaussian
from polydraft.core.latent.law import LatentLaw
from polydraft.core.law.history import History
from polydraft.core.law.sampling import Settings
from polydraft.modalities.image.families.mar.head import SetChain
from polydraft.modalities.image.families.mar.sets import Sets


@dataclass(frozen=True)
class SetLaw(LatentLaw):
    """Of all steps. real: `[B, K, S · C]` bool, numbers of tokens that the set has; others are 0. scale: `[B, K]`."""

    real: Tensor = field(kw_only=True)

    def step(self, x: Tensor, step: int) -> Gaussian:
        law = super().step(x, step)
        mean = torch.where(self.real, law.mean, 0)
        return replace(law, mean=mean, deviation=torch.where(self.real, law.deviation, 0))


@dataclass(frozen=True)
class SetSampler:
    """Laws of hidden states `[B, K, R, S · D]`."""

    chain: SetChain
    sets: Sets
    ends: Tensor | None = None  # a picture has no end of its own
    forced = 0

    def remembers(self, settings: Settings) -> bool:
        return True  # which set it is

    def __call__(self, hidden: Tensor, settings: Settings, history: History | None = None) -> SetLaw:
        assert history is not None
        return self.at(hidden, settings, history.t)

    def at(self, hidden: Tensor, settings: Settings, t: Tensor) -> SetLaw:
        """Of the sets t `[B, K]`."""
        turns = t.clamp(max=len(self.sets) - 1)
        sizes, progress = torch.tensor(self.sets.sizes).to(t.device), self.sets.progress.to(t.device)
        numbers = torch.arange(self.chain.size, device=t.device)
        real = numbers < self.chain.token * sizes[turns][..., None]
        scale = 1 + (settings.guidance_scale[:, None] - 1) * progress[turns]
        return SetLaw(self.chain, hidden, scale, settings.temperature, real=real)
