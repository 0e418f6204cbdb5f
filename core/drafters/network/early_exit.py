"""Early exit: the target's own first layers draft, with or without a small trained adapter after them.

Liu et al. 2024, Kangaroo (arXiv 2404.18911), section 3: one layer turns the hidden states of an early layer into inputs
of the target's frozen LM head. Without an adapter it is plain early exit, which needs no training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.drafters.network.base import (
    DrafterModel,
    DraftHead,
    NetworkDrafter,
    build_decoder,
    build_layers,
    layer_config,
)
from polydraft.core.drafters.network.state import DrafterNetwork, prompt_embeddings
from polydraft.core.drafters.tree.shapes import CandidateRanking, TreeShape
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.target.causal import CausalTarget, PrefillOutput

ATTENTIONS = ("self_attn", "encoder_attn")  # of a layer, if it has both


def truncate_backbone(target: PreTrainedModel, layers: int, adapter: PreTrainedModel | None = None) -> PreTrainedModel:
    """Return a backbone of the target's first layers, followed by the layers and the norm of an adapter, if any.

    Layers are shared with the target and the adapter, not copied. The backbone has no embeddings: it takes
    `inputs_embeds`.

    Args:
        target (PreTrainedModel): Model to draft for.
        layers (int): Number of its layers to keep.
        adapter (PreTrainedModel | None): Trained layers of the same architecture; None: the target's final norm follows
            directly.

    Raises:
        UnsupportedMethod: The target's decoder has no list of layers.
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
    if getattr(config, "layer_types", None):  # the target's layers keep their kind of attention
        config.layer_types[:layers] = target_config.layer_types[:layers]
    with torch.device("meta"):  # no memory for weights, since all layers are replaced below
        backbone: PreTrainedModel = type(decoder)(config)
    backbone.layers = nn.ModuleList([*decoder.layers[:layers], *adapter_layers])
    for index, layer in enumerate(adapter_layers, layers):
        for attn in (getattr(layer, name) for name in ATTENTIONS if hasattr(layer, name)):
            attn.layer_idx = index  # layer of the KV cache that it writes to
    backbone.embed_tokens = nn.Identity()
    positions, norm = ("embed_positions", "layer_norm") if config.is_encoder_decoder else ("rotary_emb", "norm")
    setattr(backbone, positions, getattr(decoder, positions))
    setattr(backbone, norm, getattr(decoder if adapter is None else adapter, norm))
    return backbone.eval()


class KangarooAdapter(DrafterModel):
    """Kangaroo adapter: `depth` layers of the target's architecture, run after the target's first `layers` layers.

    Args:
        target_config (Any): Text configuration of the target.
        layers (int): Layers of the target that run before the adapter.
        depth (int): Layers of the adapter.
        words (list[int] | None): Token ids that may be drafted; None for all.
    """

    kind: ClassVar[str] = "kangaroo"
    title: ClassVar[str] = "Kangaroo adapter"

    def __init__(
        self, target_config: Any, layers: int = 2, depth: int = 1, words: list[int] | None = None
    ) -> None:
        """Create `depth` untrained layers, to run after the first `layers` layers of a target (see `attach`)."""
        super().__init__(target_config, layers=layers, depth=depth)
        self.restrict_vocab(words)
        self.layers = layers
        self.adapter: PreTrainedModel = build_layers(layer_config(target_config, depth))
        if hasattr(self.adapter, "embed_positions"):  # the target's first layers have added positions already
            self.adapter.embed_positions = nn.Identity()
        # [backbone] once `attach` was called; nn.Module does not register what is in a list, so the target's weights
        # are not saved with this module
        self.attached: list[PreTrainedModel] = []

    @classmethod
    def from_folder(cls, folder: Path, target: PreTrainedModel) -> Self:
        """Load an adapter that `save_pretrained` wrote, and attach it to the first layers of `target`."""
        return super().from_folder(folder, target).attach(target)

    def attach(self, target: PreTrainedModel) -> Self:
        """Build `backbone` from the first layers of `target` and the adapter, and return the adapter."""
        self.attached = [truncate_backbone(target, self.layers, self.adapter)]
        return self

    @property
    def backbone(self) -> PreTrainedModel:
        """The target's first layers and the adapter, as one backbone."""
        return self.attached[0]


class EarlyExitDrafterNetwork(DrafterNetwork):
    """Truncated backbone over a KV cache; its inputs are those of the target's first layer, images included."""

    def __init__(self, backbone: PreTrainedModel, target: CausalTarget) -> None:
        super().__init__(build_decoder(backbone, backbone.config, target.network.position_ids_fn), target)

    def embed_inputs(self, tokens: Tensor, hidden_states: Tensor) -> Tensor:
        """Return the target's embeddings of token ids, once per guidance branch, `[B*R, C, D]`.

        Args:
            tokens (Tensor): [B, C] token ids.
            hidden_states (Tensor): [B, R, C, D] target hidden states; only R, the number of guidance branches, is used.
        """
        return self.target.embed(tokens).repeat_interleave(hidden_states.shape[1], 0)

    def prompt_inputs(self, prompts: PrefillOutput) -> tuple[Tensor, Tensor]:
        """Return the inputs of the target's first layer, `[B*R, L, D]`, and the prompt lengths without root, `[B, R]`.

        The root is the last token of a prompt.
        """
        return prompt_embeddings(self.target, prompts), prompts.branch_lens - 1


class EarlyExitDrafter(NetworkDrafter):
    """Drafter that grows trees with a truncated backbone and the target's LM head.

    Args:
        backbone (PreTrainedModel): Result of `truncate_backbone`.
        target (CausalTarget): Target that the drafts are for.
        tree_shape (TreeShape): Rule that decides which nodes a draft has.
        ranking (CandidateRanking): Ranking of the children of a node.
        adapter (KangarooAdapter | None): Adapter at the end of the backbone, if any.
    """

    def __init__(
        self, backbone: PreTrainedModel, target: CausalTarget, tree_shape: TreeShape, ranking: CandidateRanking,
        adapter: KangarooAdapter | None = None,
    ) -> None:  # fmt: skip
        self.draft_head: DraftHead = DraftHead(adapter, target)
        network = EarlyExitDrafterNetwork(backbone, target)
        super().__init__(network, target, tree_shape, ranking, self.draft_head.vocab_subset)

    def head(self, hidden_states: Tensor) -> Tensor:
        """Return logits `[..., V]`, or over the vocabulary subset, of the backbone's hidden states `[..., D]`."""
        return self.draft_head(hidden_states)
