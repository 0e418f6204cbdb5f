"""Small random targets of latents, and a head whose chain is Gaussian in closed form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from polydraft.core.continuous.denoising import FixedNoiseChain
from polydraft.core.continuous.target import LatentTarget
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs

BEGIN = 2
LEVELS = (3.0, 1.6, 0.9, 0.5, 0.3)  # noise of the states of a chain


class RandomHead(FixedNoiseChain, nn.Module):
    """Head that denoises towards a function of a hidden state; `spread` scales how much it depends on it."""

    def __init__(self, size: int = 3, hidden: int = 32, levels: Sequence[float] = LEVELS, spread: float = 1.0) -> None:
        super().__init__()
        self.latent_size, self.levels = size, levels
        self.inward = nn.Sequential(nn.Linear(size, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.outward = nn.Linear(hidden, size)
        self.deeper = nn.Linear(size, size)
        self.spread = spread
        self.init_std = (1 + levels[0] ** 2) ** 0.5
        self.step_stds = [
            after * (1 - (after / before) ** 2) ** 0.5 for before, after in zip(levels, levels[1:], strict=False)
        ]

    def embed(self, latents: Tensor) -> Tensor:
        return self.inward(latents.to(self.deeper.weight.dtype))

    def condition(self, hidden: Tensor) -> Tensor:
        return self.outward(hidden).float() * self.spread

    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        return self.mean_towards(x, step, self.predict_denoised(x, step, condition, scale))

    def mean_towards(self, x: Tensor, step: int, denoised: Tensor) -> Tensor:
        before, after = self.levels[step : step + 2]
        return denoised + (after / before) ** 2 * (x - denoised)

    def predict_denoised(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        guided = condition[:, 0]
        if condition.shape[1] == 2:
            guided = condition[:, 1] + scale[:, None, None] * (condition[:, 0] - condition[:, 1])
        nonlinear = self.deeper((x / (1 + self.levels[step] ** 2) ** 0.5).to(self.deeper.weight.dtype)).float()
        return guided + 0.2 * nonlinear.tanh()


def backbone(layers: int = 3, seed: int = 0) -> LlamaModel:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=24, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256,
    )  # fmt: skip
    return LlamaModel(config)


def latent_target(
    *, guided: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0, size: int = 3, layers: int = 3
) -> LatentTarget:
    """Return a target with the same weights for the same seed."""
    model = backbone(layers, seed)
    head = RandomHead(size)
    return LatentTarget(model.to(dtype), head.to(dtype), begin=BEGIN, guided=guided)


def prompts(rows: int, budget: int = 12, guidance: float = 1.0, temperature: float = 1.0) -> list[PromptInputs]:
    """Return prompts of several lengths; the unconditional branch has no words."""
    made = []
    for row in range(rows):
        words = tuple(3 + (5 * row + 7 * place) % 20 for place in range(1 + row % 4))
        sampling = SamplingParams(temperature=temperature, guidance_scale=guidance)
        made.append(
            PromptInputs(((1, *words, BEGIN), (1, BEGIN)), budget + row % 3, seed=100 + row, sampling_params=sampling)
        )
    return made
