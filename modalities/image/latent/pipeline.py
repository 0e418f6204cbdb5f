"""Text to image by latents: an autoregressive backbone whose every token a small diffusion head draws.

    pipe = load("tiny-latent")
    pipe("two frogs on a blue background", seed=7).image.save("frogs.png")

The same seed draws the same latents, drafted or not (`core.latent`).
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from polydraft.core.latent.law import LatentSampler
from polydraft.core.latent.target import LatentTarget, check
from polydraft.core.sampling import Sampling
from polydraft.core.target import CausalTarget
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.latent.autoencoder import CELL, LatentAutoencoder
from polydraft.modalities.image.latent.head import LatentHead
from polydraft.modalities.image.pipeline import PicturePipeline
from polydraft.modalities.loading import ModelCard, pretrained, read_weights

GRID = 16  # latents a side


class LatentImagePipeline(PicturePipeline):
    """Pictures of latents."""

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.head = self.read_head(card.path / "head")
        folder = card.path / "vae"
        self.autoencoder = read_weights(
            "autoencoder", folder, lambda: LatentAutoencoder.from_folder(folder).to(device, dtype).eval()
        )

    def read_head(self, folder: Path) -> LatentHead:
        return read_weights("head", folder, lambda: LatentHead.from_folder(folder).to(self.device, self.dtype).eval())

    def read_target(self, folder: Path) -> PreTrainedModel:
        return pretrained(AutoModel, folder, self.device, self.dtype, self.card.device_map)

    def read_drafter(self, kind: str, folder: Path) -> Any:
        if kind == "lm":
            return pretrained(AutoModel, folder, self.device, self.dtype), self.read_head(folder / "head")
        return super().read_drafter(kind, folder)

    def adapted(self, guided: bool) -> CausalTarget:
        return LatentTarget(self.target_model, self.head, begin=vocabulary.BOI, guided=guided, context=self.context)

    @cached_property
    def sampler(self) -> LatentSampler:
        return LatentSampler(self.head)

    def sampling(self, **asked: Any) -> Sampling:
        found = super().sampling(**asked)
        check(found)
        return found

    @property
    def mask(self) -> Tensor:
        """`[1, V]` bool: no id is generated."""
        return torch.zeros(1, self.target_model.config.vocab_size, dtype=torch.bool, device=self.device)

    @property
    def codes(self) -> None:
        return None

    @property
    def grid(self) -> tuple[int, int]:
        return GRID, GRID

    @property
    def side(self) -> int:
        return GRID * CELL

    def blank(self, rows: int) -> Tensor:
        return torch.full((rows, self.image_tokens, self.head.size), torch.nan)

    def read_tokens(self, committed: list[Any] | Tensor) -> Tensor:
        return torch.as_tensor(committed, dtype=torch.float32).view(-1, self.head.size)

    def missing(self, tokens: Tensor) -> Tensor:
        return tokens.isnan().any(-1)

    def pixels(self, tokens: Tensor) -> Tensor:
        return self.autoencoder.decode(tokens.nan_to_num(0).view(-1, *self.grid, self.head.size))
