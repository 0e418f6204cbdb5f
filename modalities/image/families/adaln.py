"""Small network that denoises one continuous token: residual MLP blocks modulated by time and condition.

    net = AdaLN(inputs=64, outputs=64, condition=5120, width=1536, depth=12)
    y = net.cond_embed(hidden) + net.time_embed(torch.tensor([0.5]))
    velocity = net(x, y)

Li et al. 2024, "Autoregressive Image Generation without Vector Quantization", arXiv 2406.11838, section 4.2; NextStep-1
uses the same one. Parameters have the names they are published under in both.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FREQUENCIES = 128  # of the sinusoids
SLOWEST = 10_000.0  # period of the slowest sinusoid, in periods of the fastest
EPSILON = 1e-6


class TimeEmbedding(nn.Module):
    """Sinusoidal embedding of times `[...]` as vectors `[..., W]`; times are read in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp: nn.Sequential = nn.Sequential(nn.Linear(2 * FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, times: Tensor) -> Tensor:
        rates = torch.exp(-math.log(SLOWEST) * torch.arange(FREQUENCIES, dtype=torch.float32) / FREQUENCIES)
        angles = times.float()[..., None] * rates.to(times.device)
        waves = torch.cat([angles.cos(), angles.sin()], -1)
        output: Tensor = self.mlp(waves.to(next(self.mlp.parameters()).dtype))
        return output


class AdaLNBlock(nn.Module):
    """x + gate · MLP(norm(x) · (1 + scale) + shift), all three computed from y."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_ln: nn.LayerNorm = nn.LayerNorm(width, eps=EPSILON)
        self.mlp: nn.Sequential = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation: nn.Sequential = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shift, scale, gate = self.adaLN_modulation(y).chunk(3, -1)
        return x + gate * self.mlp(self.in_ln(x) * (1 + scale) + shift)


class AdaLNFinalLayer(nn.Module):
    """Output projection after one more norm modulated by y."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.linear: nn.Linear = nn.Linear(width, outputs)
        self.adaLN_modulation: nn.Sequential = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(y).chunk(2, -1)
        output: Tensor = self.linear(F.layer_norm(x, x.shape[-1:], eps=EPSILON) * (1 + scale) + shift)
        return output


class AdaLN(nn.Module):
    """Tokens `[..., inputs]` and y `[..., width]`, the sum of embedded time and condition, to `[..., outputs]`."""

    def __init__(self, inputs: int, outputs: int, condition: int, width: int, depth: int) -> None:
        super().__init__()
        self.time_embed: TimeEmbedding = TimeEmbedding(width)
        self.cond_embed: nn.Linear = nn.Linear(condition, width)
        self.input_proj: nn.Linear = nn.Linear(inputs, width)
        self.res_blocks: nn.ModuleList = nn.ModuleList(AdaLNBlock(width) for _ in range(depth))
        self.final_layer: AdaLNFinalLayer = AdaLNFinalLayer(width, outputs)

    @property
    def dtype(self) -> torch.dtype:
        return self.input_proj.weight.dtype

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.input_proj(x)
        for block in self.res_blocks:
            x = block(x, y)
        output: Tensor = self.final_layer(x, y)
        return output
