"""Backbone and head of `tiny-latent` in training: hidden states and losses of batches of scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn
from transformers import LlamaModel

from polydraft.apps.lab.recipes.latent.data import LatentBatch
from polydraft.apps.lab.recipes.latent.training_targets import HeadExamples, denoising_losses
from polydraft.apps.lab.training import checkpoint
from polydraft.core.folders.readers import read_model
from polydraft.core.model.precision import mixed_precision
from polydraft.modalities.image.latent.head import LatentHead
from polydraft.modalities.world.scene import NUM_CELLS


class LatentModel(nn.Module):
    """Backbone and head, trained as one."""

    def __init__(self, backbone: LlamaModel, head: LatentHead) -> None:
        super().__init__()
        self.backbone: LlamaModel = backbone
        self.head: LatentHead = head

    @classmethod
    def from_folders(cls, backbone: Path, head: Path) -> Self:
        """Load both in fp32."""
        return cls(read_model("model", LlamaModel, backbone, dtype=torch.float32), LatentHead.from_folder(head))

    def save(self, backbone: Path, head: Path, curve: checkpoint.Curve) -> None:
        """Save both as they ship."""
        head.mkdir(parents=True, exist_ok=True)
        checkpoint.save_pretrained(self.backbone, backbone, curve)
        checkpoint.save(self.head, head)

    def forward_backbone(self, batch: LatentBatch, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return input embeddings and hidden states, [B, L, D] each, for noisy tokens [B, CELLS, C]."""
        where = (batch.latent_starts[:, None] + torch.arange(NUM_CELLS))[..., None]
        read = self.head.embed(tokens).float()
        entries = self.backbone.embed_tokens(batch.ids).float().scatter(1, where.expand_as(read), read)
        return entries, self.backbone(inputs_embeds=entries, use_cache=False).last_hidden_state

    @staticmethod
    def gather_features(batch: LatentBatch, states: Tensor) -> Tensor:
        """Return the hidden states [B, CELLS, D] of [B, L, D] that condition the head."""
        where = (batch.latent_starts[:, None] + torch.arange(NUM_CELLS) - 1)[..., None]
        return states.gather(1, where.expand(-1, -1, states.shape[-1]))

    def features(self, batch: LatentBatch, tokens: Tensor) -> Tensor:
        return self.gather_features(batch, self.forward_backbone(batch, tokens)[1])


def add_token_noise(head: LatentHead, batch: LatentBatch) -> Tensor:
    """Return the latents [B, CELLS, C] of the scenes with the noise that the head's chain leaves."""
    return batch.latents + head.noise * torch.randn(batch.latents.shape)


def compute_features(model: LatentModel, batch: LatentBatch, tokens: Tensor) -> Tensor:
    """Return the hidden states [B, CELLS, D] fp32 that condition the head, in mixed precision as in training."""
    with mixed_precision():
        return model.features(batch, tokens).float()


def head_losses(model: LatentModel, batch: LatentBatch) -> Tensor:
    features = compute_features(model, batch, add_token_noise(model.head, batch))
    return denoising_losses(model.head, HeadExamples.from_batch(batch, features))
