"""Text to image by latents: an autoregressive backbone whose every token a small diffusion head samples.

    pipe = load("tiny-latent")
    pipe("two frogs on a blue background", seed=7).image.save("frogs.png")

The same seed gives the same latents, drafted or not (`core.continuous`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.emoji_pipeline import EmojiImagePipeline
from polydraft.modalities.image.latent.autoencoder import CELL, LatentAutoencoder
from polydraft.modalities.image.latent.base import LatentHeadPipeline
from polydraft.modalities.image.latent.head import LatentHead
from polydraft.modalities.image.request import ImageRequestInfo
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.weights import load_pretrained, read_weights

GRID = 16  # latents per side


class LatentImagePipeline(EmojiImagePipeline, LatentHeadPipeline):
    """Images of the emoji world as latents."""

    head: LatentHead

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.head = self.load_head(card.path / "head")
        folder = card.path / "vae"
        self.autoencoder: LatentAutoencoder = read_weights(
            "autoencoder", folder, lambda: LatentAutoencoder.from_folder(folder).to(device, dtype).eval()
        )

    def load_head(self, folder: Path) -> LatentHead:
        """Load the head in a folder."""
        return read_weights("head", folder, lambda: LatentHead.from_folder(folder).to(self.device, self.dtype).eval())

    def load_target_model(self, folder: Path) -> PreTrainedModel:
        return load_pretrained(AutoModel, folder, self.device, self.dtype, self.card.device_map)

    def load_drafter_network(self, kind: str, folder: Path) -> Any:
        if kind == "lm":
            return load_pretrained(AutoModel, folder, self.device, self.dtype), self.load_head(folder / "head")
        return super().load_drafter_network(kind, folder)

    @property
    def begin(self) -> int:
        return vocabulary.BOI

    @property
    def grid(self) -> tuple[int, int]:
        return GRID, GRID

    @property
    def token_side(self) -> int:
        return CELL

    def decode_pixels(self, tokens: Tensor, request_info: Sequence[ImageRequestInfo] = ()) -> Tensor:
        return self.autoencoder.decode(tokens.nan_to_num(0).view(-1, *self.grid, self.head.latent_size))
