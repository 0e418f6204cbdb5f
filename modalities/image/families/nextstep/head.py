"""NextStep's flow head: what turns hidden states of the language model into image tokens, step by step.

    head.embed(latents)              # what the language model reads of drawn tokens
    condition = head.condition(hidden)
    x = head.start * noise
    for step, deviation in enumerate(head.deviations):
        x = head.mean(x, step, condition, scale) + deviation * fresh_noise

Parameters have their published names. The law of the steps is in `law.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.latent.law import FixedNoise
from polydraft.modalities.image.families.adaln import EPSILON, AdaLN
from polydraft.modalities.image.families.nextstep.config import NextStepConfig
from polydraft.modalities.image.families.nextstep.law import Law


class NextStepHead(FixedNoise, nn.Module):
    """size: numbers a token. start: deviation of the first noise. deviations: of every step's, in order."""

    def __init__(self, config: NextStepConfig, law: Law) -> None:
        super().__init__()
        self.size, self.start, self.law = config.size, 1.0, law
        self.deviations = law.deviations
        self.image_in_projector = nn.Linear(config.size, config.hidden)
        self.image_out_projector = nn.Linear(config.hidden, config.hidden)
        net = AdaLN(config.size, config.size, config.hidden, config.head_width, config.head_depth)
        self.image_head = nn.ModuleDict({"net": net})

    @property
    def net(self) -> AdaLN:
        made = self.image_head["net"]
        assert isinstance(made, AdaLN)
        return made

    def tokens(self, latents: Tensor) -> Tensor:
        """Latents `[..., C]` as the sampler leaves them to tokens `[..., C]` as everything reads them."""
        tokens = latents.to(self.net.dtype)
        return F.layer_norm(tokens, tokens.shape[-1:], eps=EPSILON) if self.law.normed else tokens

    def embed(self, latents: Tensor) -> Tensor:
        """Latents `[..., C]` as the language model's inputs `[..., D]`."""
        made: Tensor = self.image_in_projector(self.tokens(latents))
        return made

    def condition(self, hidden: Tensor) -> Tensor:
        """Hidden states `[..., D]` of the last layer as what every step of the sampler is told, `[..., W]`."""
        made: Tensor = self.net.cond_embed(self.image_out_projector(hidden))
        return made

    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """Mean of x after `step`: x `[B, K, C]` fp32, condition `[B, R, K, W]`, scale `[B]` → `[B, K, C]` fp32.

        R is 2 where rows are guided, conditional first: the velocity is then u + scale (c - u).
        """
        return self.along(x, step, self.velocity(x, step, condition, scale))

    def denoised(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """`[B, K, C]` fp32: where the flow would bring x along its velocity at `step`."""
        return x + (1 - self.law.times[step]) * self.velocity(x, step, condition, scale)

    def towards(self, x: Tensor, step: int, denoised: Tensor) -> Tensor:
        """`[B, K, C]` fp32: the mean of x after `step` if the flow were to bring it to `denoised`."""
        return self.along(x, step, (denoised - x) / (1 - self.law.times[step]))

    def velocity(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """`[B, K, C]` fp32 of the flow at x when `step` begins, guided; see `mean`."""
        dtype = self.net.dtype
        told = torch.tensor([self.law.times[step]], dtype=dtype, device=x.device)  # in the weights' type, as published
        y = condition + self.net.time_embed(told)
        branches = self.net(x.to(dtype)[:, None].expand(-1, y.shape[1], -1, -1), y).float()
        if branches.shape[1] == 1:
            return branches[:, 0]
        conditional, unconditional = branches.unbind(1)
        scale = scale[:, None, None]
        guided = unconditional + scale * (conditional - unconditional)
        return torch.where(scale == 1, conditional, guided)  # what a row says that is not guided among others

    def along(self, x: Tensor, step: int, velocity: Tensor) -> Tensor:
        """The mean of x after `step` of this velocity."""
        time, span = self.law.times[step], self.law.spans[step]
        if not self.deviations[step]:
            return x + velocity * span
        return x + ((1 + time) * velocity - x) * span
