"""A MAR of four tokens whose head is written down: it believes that tokens are Gaussian around what z says.

So chains are well behaved with random weights, learnt variances differ between models, and 100,000 images are generated
in seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polydraft.modalities.image.families.adaln import AdaLN
from polydraft.modalities.image.families.mar.config import MARConfig
from polydraft.modalities.image.families.mar.network import MAR
from polydraft.modalities.image.families.mar.schedule import alphas_cumprod

TOY = MARConfig(8, 1, 2, 5, 0, side=2, channels=2, classes=2, buffer=1)
SPREAD = 0.5  # deviation of a token around its mean


class Times(nn.Module):
    """Share of the token that is left after a trained step, as the last number of y."""

    def forward(self, times: Tensor) -> Tensor:
        left = torch.from_numpy(alphas_cumprod())[times].float()[..., None]
        return torch.cat([torch.zeros(*left.shape[:-1], 4), left], -1)


class ToyHead(AdaLN):
    """Head whose y is a mean and a variance share for both coordinates, and the rest of the token."""

    def __init__(self) -> None:
        super().__init__(2, 4, 8, 5, 0)
        self.time_embed = Times()  # type: ignore[assignment]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mean, share, left = 1.5 * y[..., :2].tanh(), 0.6 + 0.4 * (2 * y[..., 2:4]).tanh(), y[..., 4:]
        noise = (1 - left).sqrt() * (x - left.sqrt() * mean) / (left * SPREAD**2 + 1 - left)
        return torch.cat([noise, share], -1)


def toy_mar(off: float = 0.0) -> MAR:
    """Build the model; `off` is the distance of its weights from those of the model with off=0."""
    torch.manual_seed(0)
    model = MAR(TOY).eval().requires_grad_(False)
    model.diffloss["net"] = ToyHead().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "norm" not in name and "_ln" not in name:  # norms as they are, so that tokens say much about each other
            parameter.copy_(torch.randn(parameter.shape) * (0.3 if "embed_learned" in name else 0.7))
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape) * off)
    for parameter in model.net.cond_embed.parameters():
        parameter[4:] = 0  # where the time is written
    return model
