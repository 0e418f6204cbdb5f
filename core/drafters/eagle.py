"""EAGLE: one decoder layer that continues the target's own features.

Entry i reads the target's feature of token i and the embedding of token i + 1 and predicts the feature of token i + 1;
the target's head turns it into a proposal. While it grows a tree it reads its own predictions; what was committed it
reads again with the target's true features.
Li et al. 2024, EAGLE (arXiv 2401.15077), section 4; EAGLE-2 (arXiv 2406.16858) grows the tree as it turns out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from polydraft.core.drafters.attached import Attached, layers_like
from polydraft.core.drafters.grow import GrowingDrafter
from polydraft.core.drafters.plans import Plan, Rank
from polydraft.core.network import Network
from polydraft.core.target import CausalTarget, Prefill


class EagleNetwork(Attached):
    """`fuse` [embedding, feature] → D, then one layer of the target's own kind; no embeddings, no head."""

    kind, title = "eagle", "EAGLE head"

    def __init__(self, target_config: Any) -> None:
        super().__init__(target_config)
        self.config = layers_like(target_config, 1)
        size = self.config.hidden_size
        self.fuse = nn.Linear(2 * size, size)
        self.layer: PreTrainedModel = AutoModel.from_config(self.config)
        self.layer.embed_tokens = nn.Identity()

    def fused(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """`[..., C, D]` each: embedding of token i + 1 and feature of token i."""
        return self.fuse(torch.cat([embeddings, features.to(embeddings.dtype)], -1))


class EagleDrafter(GrowingDrafter):
    def __init__(self, model: EagleNetwork, target: CausalTarget, plan: Plan, rank: Rank) -> None:
        self.model = model.eval()
        super().__init__(Network(model.layer, model.config, capacity=target.capacity, narrowest=1), target, plan, rank)

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        embeddings = self.target.embed(tokens)[:, None].expand(-1, features.shape[1], -1, -1)
        return self.model.fused(embeddings, features).flatten(0, 1)

    def head(self, features: Tensor) -> Tensor:
        return self.target.head(features)

    def prompt(self, ids: Tensor, lengths: Tensor, seen: Prefill) -> tuple[Tensor, Tensor]:
        features = seen.features.flatten(0, 1)
        return self.model.fused(self.embeddings(ids, seen)[:, 1:], features[:, : ids.shape[1] - 1]), lengths - 2
