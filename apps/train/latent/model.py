"""Backbone and head of `tiny-latent` as training sees them: scenes in, states and losses out."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn
from transformers import LlamaModel

from polydraft.apps.train import checkpoint
from polydraft.apps.train.latent.data import LatentBatch
from polydraft.apps.train.latent.lessons import Lessons, denoising
from polydraft.core.folders.door import read_model
from polydraft.core.model.precision import mixed
from polydraft.modalities.image.latent.head import LatentHead
from polydraft.modalities.world.scene import CELLS


class LatentModel(nn.Module):
    """Backbone and head, trained as one."""

    def __init__(self, backbone: LlamaModel, head: LatentHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    @classmethod
    def from_folders(cls, backbone: Path, head: Path) -> Self:
        """In fp32."""
        return cls(read_model("model", LlamaModel, backbone, dtype=torch.float32), LatentHead.from_folder(head))

    def save(self, backbone: Path, head: Path, curve: checkpoint.Curve) -> None:
        """As they ship."""
        head.mkdir(parents=True, exist_ok=True)
        checkpoint.save_pretrained(self.backbone, backbone, curve)
        checkpoint.save(self.head, head)

    def read(self, batch: LatentBatch, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What the backbone reads, and its states, `[B, L, D]` each; tokens: `[B, CELLS, C]`, noisy."""
        where = (batch.begins[:, None] + torch.arange(CELLS))[..., None]
        read = self.head.embed(tokens).float()
        entries = self.backbone.embed_tokens(batch.ids).float().scatter(1, where.expand_as(read), read)
        return entries, self.backbone(inputs_embeds=entries, use_cache=False).last_hidden_state

    @staticmethod
    def drawn_from(batch: LatentBatch, states: Tensor) -> Tensor:
        """The states that latents are drawn from, `[B, CELLS, D]` of `[B, L, D]`."""
        where = (batch.begins[:, None] + torch.arange(CELLS) - 1)[..., None]
        return states.gather(1, where.expand(-1, -1, states.shape[-1]))

    def features(self, batch: LatentBatch, tokens: Tensor) -> Tensor:
        return self.drawn_from(batch, self.read(batch, tokens)[1])


def noised(head: LatentHead, batch: LatentBatch) -> Tensor:
    """Tokens of the scenes, `[B, CELLS, C]`, with the noise that the head's chain keeps."""
    return batch.latents + head.noise * torch.randn(batch.latents.shape)


def understood(model: LatentModel, batch: LatentBatch, tokens: Tensor) -> Tensor:
    """The states that latents are drawn from, `[B, CELLS, D]` fp32, computed as in training."""
    with mixed():
        return model.features(batch, tokens).float()


def losses(model: LatentModel, batch: LatentBatch) -> Tensor:
    return denoising(model.head, Lessons.of(batch, understood(model, batch, noised(model.head, batch))))
