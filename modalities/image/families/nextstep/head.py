"""NextStep's flow head, which samples image tokens from hidden states of the language model, step by step.

    head.embed(latents)              # the language model's inputs for sampled tokens
    condition = head.condition(hidden)
    x = head.init_std * noise
    for step, std in enumerate(head.step_stds):
        x = head.mean(x, step, condition, scale) + std * fresh_noise

Parameters have their published names. The steps are defined in `schedule.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.continuous.denoising import FixedNoiseChain
from polydraft.modalities.image.families.adaln import EPSILON, AdaLN
from polydraft.modalities.image.families.nextstep.config import NextStepConfig
from polydraft.modalities.image.families.nextstep.schedule import FlowSchedule


class NextStepHead(FixedNoiseChain, nn.Module):
    """Flow head with the coefficients of its sampling steps."""

    def __init__(self, config: NextStepConfig, schedule: FlowSchedule) -> None:
        super().__init__()
        self.latent_size: int = config.token_dim
        self.init_std: float = 1.0
        self.schedule: FlowSchedule = schedule
        self.step_stds: list[float] = schedule.step_stds
        self.image_in_projector: nn.Linear = nn.Linear(config.token_dim, config.hidden_size)
        self.image_out_projector: nn.Linear = nn.Linear(config.hidden_size, config.hidden_size)
        net = AdaLN(config.token_dim, config.token_dim, config.hidden_size, config.head_width, config.head_depth)
        self.image_head: nn.ModuleDict = nn.ModuleDict({"net": net})

    @property
    def net(self) -> AdaLN:
        """Return the velocity network."""
        net = self.image_head["net"]
        assert isinstance(net, AdaLN)
        return net

    def tokens(self, latents: Tensor) -> Tensor:
        """Convert latents `[..., C]` of the sampler to tokens `[..., C]`, which everything else reads."""
        tokens = latents.to(self.net.dtype)
        return F.layer_norm(tokens, tokens.shape[-1:], eps=EPSILON) if self.schedule.normalises_tokens else tokens

    def embed(self, latents: Tensor) -> Tensor:
        """Return the language model's inputs `[..., D]` for latents `[..., C]`."""
        output: Tensor = self.image_in_projector(self.tokens(latents))
        return output

    def condition(self, hidden: Tensor) -> Tensor:
        """Return the condition `[..., W]` of all sampling steps for hidden states `[..., D]` of the last layer."""
        output: Tensor = self.net.cond_embed(self.image_out_projector(hidden))
        return output

    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """Return the mean of x after `step`.

        Args:
            x (Tensor): `[B, K, C]` fp32.
            step (int): index of the step.
            condition (Tensor): `[B, R, K, W]`; of two guidance branches the first is the conditional one.
            scale (Tensor): `[B]` guidance scales; the velocity is u + scale (c - u).

        Returns:
            Tensor: `[B, K, C]` fp32.
        """
        return self.step_mean(x, step, self.velocity(x, step, condition, scale))

    def predict_denoised(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """Return the end of the flow `[B, K, C]` fp32 if x keeps its velocity at `step`."""
        return x + (1 - self.schedule.times[step]) * self.velocity(x, step, condition, scale)

    def mean_towards(self, x: Tensor, step: int, denoised: Tensor) -> Tensor:
        """Return the mean of x after `step`, `[B, K, C]` fp32, if the flow ended at `denoised`."""
        return self.step_mean(x, step, (denoised - x) / (1 - self.schedule.times[step]))

    def velocity(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        """Return the guided velocity of the flow at x when `step` begins, `[B, K, C]` fp32."""
        dtype = self.net.dtype
        time = torch.tensor(
            [self.schedule.times[step]], dtype=dtype, device=x.device
        )  # in the weights' dtype, as published
        y = condition + self.net.time_embed(time)
        branches = self.net(x.to(dtype)[:, None].expand(-1, y.shape[1], -1, -1), y).float()
        if branches.shape[1] == 1:
            return branches[:, 0]
        conditional, unconditional = branches.unbind(1)
        scale = scale[:, None, None]
        guided = unconditional + scale * (conditional - unconditional)
        return torch.where(scale == 1, conditional, guided)  # unguided rows among guided ones keep their bits

    def step_mean(self, x: Tensor, step: int, velocity: Tensor) -> Tensor:
        """Return the mean of x after `step` with this velocity."""
        time, span = self.schedule.times[step], self.schedule.step_sizes[step]
        if not self.step_stds[step]:
            return x + velocity * span
        return x + ((1 + time) * velocity - x) * span
