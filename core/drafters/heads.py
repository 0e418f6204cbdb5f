"""Medusa heads: K guesses from the target's last feature alone, each a residual block.

Cai et al. 2024, Medusa (arXiv 2401.10774), section 2.1; on speech codes Li et al. 2024, VADUSA (arXiv 2410.21951). As
published every head ends in a vocabulary projection of its own; here all share the target's frozen one, applied to the
head's transformed feature: K·D² weights instead of K·(D² + D·V), and an untrained head already says what the target
said one place earlier.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from polydraft.core.cache import SlotCache
from polydraft.core.drafters.parallel import Foreseer, last


class MedusaHeads(Foreseer):
    """`h + SiLU(W_k h + b_k)` for k = 1 … `places`, with W and b zero at first; one product for all heads."""

    kind, title = "heads", "Medusa heads"

    def __init__(self, target_config: Any, places: int = 4) -> None:
        super().__init__(target_config, places=places)
        self.places = places
        size = target_config.hidden_size
        self.blocks = nn.Linear(size, places * size)
        nn.init.zeros_(self.blocks.weight)
        nn.init.zeros_(self.blocks.bias)

    def forward(self, features: Tensor) -> Tensor:
        """`[..., D]` → `[..., K, D]`."""
        features = features.to(self.blocks.weight.dtype)
        turned = self.blocks(features).unflatten(-1, (self.places, -1))
        return features[..., None, :] + torch.nn.functional.silu(turned)

    def everywhere(self, features: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        return self(features[:, starts])

    def ahead(
        self, cache: SlotCache, cached: Tensor, features: Tensor, embeddings: Tensor, counts: Tensor, places: int
    ) -> Tensor:
        return self(last(features, counts))[:, :, :places]
