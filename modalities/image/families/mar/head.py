"""MAR's head as a denoising chain: a set of tokens is sampled by Gaussian steps whose variance the head predicts.

    chain = SetChain(model.net, max_set_size=7, steps=100)
    condition = chain.condition(hidden)                     # [B, R, K, S · D] to [B, R, K, S, W]
    mean, deviation = chain.moments(x, step, condition, scale)

To the core a set is one latent of S · C values: `max_set_size` tokens, padded at its end. Tokens of a set are
independent of each other given what came before, so their chains side by side are one chain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polydraft.modalities.image.families.adaln import AdaLN
from polydraft.modalities.image.families.mar.schedule import DiffusionSchedule


class SetChain:
    """Denoising chain of sets of tokens."""

    init_std: float = 1.0

    def __init__(self, net: AdaLN, max_set_size: int, steps: int = 100, noisy_end: bool = True) -> None:
        """Create the chain.

        Args:
            net (AdaLN): the head's network.
            max_set_size (int): tokens of the largest set.
            steps (int): of the chain.
            noisy_end (bool): whether the last step adds noise, which it does not as published: a deviation of 0.0062 to
                0.0064 where that of tokens is 1. That is another sampler, and one whose tokens have a density.

        Raises:
            InvalidArgument: the number of steps is not possible.
        """
        self.net: AdaLN = net
        self.max_set_size: int = max_set_size
        self.num_steps: int = steps
        self.noisy_end: bool = noisy_end
        self.schedule: DiffusionSchedule = DiffusionSchedule.for_steps(steps)
        self.token_dim: int = net.input_proj.in_features

    @property
    def latent_size(self) -> int:
        """Return the number of values of a set."""
        return self.max_set_size * self.token_dim

    def with_network(self, net: AdaLN) -> SetChain:
        """Return the same steps with another network, a drafter's."""
        return SetChain(net, self.max_set_size, self.num_steps, self.noisy_end)

    def condition(self, hidden: Tensor) -> Tensor:
        embedded: Tensor = self.net.cond_embed(hidden.unflatten(-1, (self.max_set_size, -1)))
        return embedded

    def mean_and_std(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> tuple[Tensor, float | Tensor]:
        """Return mean and standard deviation of `x` after `step`, as `core.continuous.denoising.DenoisingChain` does.

        Guidance applies to the predicted noise; the variance is the conditional branch's. `scale` `[B, K]` is per set.
        """
        schedule, tokens = self.schedule, x.unflatten(-1, (self.max_set_size, -1))
        timestep = torch.tensor([int(schedule.timesteps[step])], device=x.device)
        y = condition + self.net.time_embed(timestep)
        expanded = tokens.to(self.net.dtype)[:, None].expand(-1, y.shape[1], -1, -1, -1)
        noise, variance_share = self.net(expanded, y).float().split(self.token_dim, -1)  # [B, R, K, S, C]
        predicted_noise = noise[:, 0]
        if noise.shape[1] == 2:
            guidance = scale[..., None, None]
            guided = noise[:, 1] + guidance * (predicted_noise - noise[:, 1])
            predicted_noise = torch.where(guidance == 1, predicted_noise, guided)
        token = float(schedule.token_x_coef[step]) * tokens - float(schedule.token_noise_coef[step]) * predicted_noise
        mean = (float(schedule.mean_token_coef[step]) * token + float(schedule.mean_x_coef[step]) * tokens).flatten(2)
        if step == self.num_steps - 1 and not self.noisy_end:
            return mean, 0.0
        weight = (variance_share[:, 0] + 1) / 2
        log_variance = weight * float(schedule.log_max_variance[step]) + (1 - weight) * float(
            schedule.log_min_variance[step]
        )
        return mean, (0.5 * log_variance).exp().flatten(2)
