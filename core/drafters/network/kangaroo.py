"""Early exit: the target's own first layers draft, with a small trained adapter behind them or with none.

Liu et al. 2024, Kangaroo (arXiv 2404.18911), section 3: one layer turns the features of an early layer into features
for the target's frozen head. Without an adapter it is plain early exit, which needs no training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.drafters.network.base import FeatureNetwork, NetworkDrafter, layers_alone, layers_like
from polydraft.core.drafters.network.reading import NetworkReader, embeddings
from polydraft.core.drafters.tree.plans import Plan, Rank
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.model.network import Network
from polydraft.core.target import CausalTarget, Prefill


def shallow(target: PreTrainedModel, layers: int, adapter: PreTrainedModel | None = None) -> PreTrainedModel:
    """The target's first `layers` layers and the adapter's behind them as one backbone that reads embeddings.

    Nothing is copied: the layers are the target's and the adapter's own.
    """
    decoder: Any = target.get_decoder()
    if not hasattr(decoder, "layers"):
        raise UnsupportedMethod(
            f"{type(target).__name__} has no layers that could be left early; use jacobi, or a trained drafter."
        )
    own: Any = adapter
    behind: list[Any] = [] if own is None else list(own.layers)
    whole = target.config.get_text_config()
    config = layers_like(whole, layers + len(behind))
    if getattr(config, "layer_types", None):
        config.layer_types[:layers] = whole.layer_types[:layers]
    with torch.device("meta"):
        backbone: PreTrainedModel = type(decoder)(config)
    backbone.layers = nn.ModuleList([*decoder.layers[:layers], *behind])
    for place, layer in enumerate(behind, layers):
        layer.self_attn.layer_idx = place  # its own place in the cache
    backbone.embed_tokens, backbone.rotary_emb = nn.Identity(), decoder.rotary_emb
    backbone.norm = decoder.norm if adapter is None else adapter.norm
    return backbone.eval()


class KangarooAdapter(FeatureNetwork):
    """`depth` layers of the target's own kind behind its first `layers`."""

    kind, title = "kangaroo", "Kangaroo adapter"

    def __init__(self, target_config: Any, layers: int = 2, depth: int = 1) -> None:
        super().__init__(target_config, layers=layers, depth=depth)
        self.layers = layers
        self.adapter: PreTrainedModel = layers_alone(layers_like(target_config, depth))
        self.joined: list[PreTrainedModel] = []  # a list, so that the target's weights are not this module's

    @classmethod
    def from_folder(cls, folder: Path, target: PreTrainedModel) -> Self:
        return super().from_folder(folder, target).behind(target)

    def behind(self, target: PreTrainedModel) -> Self:
        """Ready to run on `target`."""
        self.joined = [shallow(target, self.layers, self.adapter)]
        return self

    @property
    def backbone(self) -> PreTrainedModel:
        return self.joined[0]


class EarlyExitReader(NetworkReader):
    """It reads what the target's first layer reads, pictures included."""

    def __init__(self, backbone: PreTrainedModel, target: CausalTarget) -> None:
        super().__init__(Network(backbone, backbone.config, target.network.coordinates), target)

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return self.target.embed(tokens).repeat_interleave(features.shape[1], 0)

    def prompt(self, seen: Prefill) -> tuple[Tensor, Tensor]:
        return embeddings(self.target, seen), seen.lengths - 1


class EarlyExitDrafter(NetworkDrafter):
    """The target's own head says what the backbone's features mean."""

    def __init__(self, backbone: PreTrainedModel, target: CausalTarget, plan: Plan, rank: Rank) -> None:
        super().__init__(EarlyExitReader(backbone, target), target, plan, rank)

    def head(self, features: Tensor) -> Tensor:
        return self.target.head(features)
