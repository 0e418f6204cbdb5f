"""Text to image by latents: an autoregressive backbone whose every token a small diffusion head draws.

    pipe = load("tiny-latent")
    pipe("two frogs on a blue background", seed=7).image.save("frogs.png")

The same seed draws the same latents, drafted or not (`core.latent`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.latent.autoencoder import CELL, LatentAutoencoder
from polydraft.modalities.image.latent.base import LatentPictures
from polydraft.modalities.image.latent.head import LatentHead
from polydraft.modalities.image.run import Asked
from polydraft.modalities.image.world import WorldPictures
from polydraft.modalities.loading import ModelCard, pretrained, read_weights

GRID = 16  # latents a side


class LatentImagePipeline(WorldPictures, LatentPictures):
    """Pictures of the emoji world as latents."""

    head: LatentHead

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

    @property
    def begin(self) -> int:
        return vocabulary.BOI

    @property
    def grid(self) -> tuple[int, int]:
        return GRID, GRID

    @property
    def token_side(self) -> int:
        return CELL

    def pixels(self, tokens: Tensor, asked: Sequence[Asked] = ()) -> Tensor:
        return self.autoencoder.decode(tokens.nan_to_num(0).view(-1, *self.grid, self.head.size))
