"""Early exit: the target's own first layers draft, with or without a small trained adapter after them.

Liu et al. 2024, Kangaroo (arXiv 2404.18911), section 3: one layer turns the hidden states of an early layer into inputs
of the target's frozen LM head. Without an adapter it is plain early exit, which needs no training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.drafters.network.base import DrafterModel, NetworkDrafter, build_layers, layer_config
from polydraft.core.drafters.network.state import DrafterNetwork, prompt_embeddings
from polydraft.core.drafters.tree.shapes import CandidateRanking, TreeShape
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.model.decoder import TreeDecoder
from polydraft.core.target.causal import CausalTarget, PrefillOutput


def truncate_backbone(target: PreTrainedModel, layers: int, adapter: PreTrainedModel | None = None) -> PreTrainedModel:
    """Return a backbone of the target's first `layers` layers followed by those of `adapter`; it takes embeddings.

    The layers are shared with the target and the adapter, not copied.
    """
    decoder: Any = target.get_decoder()
    if not hasattr(decoder, "layers"):
        raise UnsupportedMethod(
            f"{type(target).__name__} has no layers that could be left early; use jacobi, or a trained drafter."
        )
    adapter_module: Any = adapter
    adapter_layers: list[Any] = [] if adapter_module is None else list(adapter_module.layers)
    target_config = target.config.get_text_config()
    config = layer_config(target_config, layers + len(adapter_layers))
    if getattr(config, "layer_types", None):
        config.layer_types[:layers] = target_config.layer_types[:layers]
    with torch.device("meta"):
        backbone: PreTrainedModel = type(decoder)(config)
    backbone.layers = nn.ModuleList([*decoder.layers[:layers], *adapter_layers])
    for index, layer in enumerate(adapter_layers, layers):
        layer.self_attn.layer_idx = index  # which layer of the cache is its own
    backbone.embed_tokens, backbone.rotary_emb = nn.Identity(), decoder.rotary_emb
    backbone.norm = decoder.norm if adapter is None else adapter.norm
    return backbone.eval()


class KangarooAdapter(DrafterModel):
    """Kangaroo adapter: `depth` layers of the target's architecture, run after the target's first `layers` layers."""

    kind, title = "kangaroo", "Kangaroo adapter"

    def __init__(self, target_config: Any, layers: int = 2, depth: int = 1) -> None:
        super().__init__(target_config, layers=layers, depth=depth)
        self.layers = layers
        self.adapter: PreTrainedModel = build_layers(layer_config(target_config, depth))
        self.attached: list[PreTrainedModel] = []  # a list, so that the target's weights are no part of this module

    @classmethod
    def from_folder(cls, folder: Path, target: PreTrainedModel) -> Self:
        return super().from_folder(folder, target).attach(target)

    def attach(self, target: PreTrainedModel) -> Self:
        """Join the adapter to the first layers of `target`, so that `backbone` can run."""
        self.attached = [truncate_backbone(target, self.layers, self.adapter)]
        return self

    @property
    def backbone(self) -> PreTrainedModel:
        """The target's first layers and the adapter, as one backbone."""
        return self.attached[0]


class EarlyExitDrafterNetwork(DrafterNetwork):
    """Truncated backbone over a KV cache; its inputs are those of the target's first layer, images included."""

    def __init__(self, backbone: PreTrainedModel, target: CausalTarget) -> None:
        super().__init__(TreeDecoder(backbone, backbone.config, target.network.coordinates), target)

    def embed_inputs(self, tokens: Tensor, hidden_states: Tensor) -> Tensor:
        return self.target.embed(tokens).repeat_interleave(hidden_states.shape[1], 0)

    def prompt_inputs(self, prompts: PrefillOutput) -> tuple[Tensor, Tensor]:
        return prompt_embeddings(self.target, prompts), prompts.branch_lens - 1


class EarlyExitDrafter(NetworkDrafter):
    """Drafter that grows trees with a truncated backbone and the target's LM head."""

    def __init__(
        self, backbone: PreTrainedModel, target: CausalTarget, tree_shape: TreeShape, ranking: CandidateRanking
    ) -> None:
        super().__init__(EarlyExitDrafterNetwork(backbone, target), target, tree_shape, ranking)

    def head(self, hidden_states: Tensor) -> Tensor:
        return self.target.compute_logits(hidden_states)
