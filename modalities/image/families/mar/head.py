"""MAR's head as a chain of the core: a set of tokens is drawn by Gaussian steps whose variance the head learnt.

    chain = SetChain(model.net, widest=7, steps=100)
    condition = chain.condition(hidden)                     # [B, R, K, S · D] to [B, R, K, S, W]
    mean, deviation = chain.moments(x, step, condition, scale)

To the core a set is one latent of S · C numbers, `widest` tokens with what it lacks of them at its end. Tokens of a set
are drawn independently of each other, so their chains side by side are one chain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polydraft.modalities.image.families.adaln import AdaLN
from polydraft.modalities.image.families.mar.schedule import Schedule


class SetChain:
    """widest: tokens of the largest set. steps: of the chain. Raises InvalidArgument.

    noisy_end: the last step, which adds nothing as published, adds what its variance says, a deviation of 0.0062 to
    0.0064 where tokens' own is 1. That is another sampler, and one whose tokens have a density.
    """

    start = 1.0

    def __init__(self, net: AdaLN, widest: int, steps: int = 100, noisy_end: bool = True) -> None:
        self.net, self.widest, self.steps, self.noisy_end = net, widest, steps, noisy_end
        self.schedule = Schedule.of(steps)
        self.token = net.input_proj.in_features

    @property
    def size(self) -> int:
        """Numbers a set."""
        return self.widest * self.token

    def beside(self, net: AdaLN) -> SetChain:
        """The same steps of another network, a drafter's."""
        return SetChain(net, self.widest, self.steps, self.noisy_end)

    def condition(self, hidden: Tensor) -> Tensor:
        made: Tensor = self.net.cond_embed(hidden.unflatten(-1, (self.widest, -1)))
        return made

    def moments(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> tuple[Tensor, float | Tensor]:
        """As of `core.latent.law.Chain`; scale `[B, K]`, a set's own.

        Guidance is of the noise guessed; the variance is the conditional branch's.
        """
        at, tokens = self.schedule, x.unflatten(-1, (self.widest, -1))
        told = torch.tensor([int(at.times[step])], device=x.device)
        y = condition + self.net.time_embed(told)
        spread = tokens.to(self.net.dtype)[:, None].expand(-1, y.shape[1], -1, -1, -1)
        noise, share = self.net(spread, y).float().split(self.token, -1)  # [B, R, K, S, C]
        guessed = noise[:, 0]
        if noise.shape[1] == 2:
            strength = scale[..., None, None]
            guessed = torch.where(strength == 1, guessed, noise[:, 1] + strength * (guessed - noise[:, 1]))
        token = float(at.to_token[step]) * tokens - float(at.of_noise[step]) * guessed
        mean = (float(at.from_token[step]) * token + float(at.from_x[step]) * tokens).flatten(2)
        if step == self.steps - 1 and not self.noisy_end:
            return mean, 0.0
        part = (share[:, 0] + 1) / 2
        log_variance = part * float(at.log_most[step]) + (1 - part) * float(at.log_least[step])
        return mean, (0.5 * log_variance).exp().flatten(2)
