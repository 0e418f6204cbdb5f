"""EAGLE: one decoder layer that continues the target's own features.

Entry i reads the target's feature of token i and the embedding of token i + 1 and predicts the feature of token i + 1;
the target's head turns it into a proposal. While it grows a tree it reads its own predictions; what was committed it
reads again with the target's true features.
Li et al. 2024, EAGLE (arXiv 2401.15077), section 4; EAGLE-2 (arXiv 2406.16858) grows the tree as it turns out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from polydraft.core.drafters.grow import GrowingDrafter
from polydraft.core.drafters.plans import Plan, Rank
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.network import Network
from polydraft.core.target import CausalTarget


class EagleNetwork(nn.Module):
    """`fuse` [embedding, feature] → D, then one layer of the target's own kind; no embeddings, no head."""

    def __init__(self, target_config: Any) -> None:
        super().__init__()
        self.target = fingerprint(target_config)
        ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
        changes: dict[str, Any] = {"num_hidden_layers": 1, "vocab_size": 1, **ids}
        if getattr(target_config, "layer_types", None):
            changes["layer_types"] = ["full_attention"]
        self.config = type(target_config)(**(target_config.to_dict() | changes))
        size = self.config.hidden_size
        self.fuse = nn.Linear(2 * size, size)
        self.layer: PreTrainedModel = AutoModel.from_config(self.config)
        self.layer.embed_tokens = nn.Identity()

    @classmethod
    def from_folder(cls, folder: Path, target: PreTrainedModel) -> EagleNetwork:
        """Weights written by `save_pretrained`, refused if they were trained for a target of another shape."""
        stored = json.loads((folder / "config.json").read_text())
        wanted = fingerprint(target.config.get_text_config())
        if stored.get("target") != wanted:
            raise UnsupportedMethod(
                f"the EAGLE head in {folder} belongs to a target of {stored.get('target')} and this one is {wanted}; "
                "train one with `polydraft train drafter --kind eagle`."
            )
        network = cls(target.config.get_text_config()).to(target.dtype)
        network.load_state_dict(load_file(folder / "model.safetensors"))
        return network.to(target.device)

    def save_pretrained(self, folder: Path, state_dict: dict[str, Tensor] | None = None) -> None:
        """`model.safetensors`, and in config.json the shape of the target it belongs to."""
        weights = self.state_dict() if state_dict is None else state_dict
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(
            json.dumps({"model_type": "polydraft-eagle", "target": self.target}, indent=2) + "\n"
        )

    def fused(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """`[..., C, D]` each: embedding of token i + 1 and feature of token i."""
        return self.fuse(torch.cat([embeddings, features.to(embeddings.dtype)], -1))


def fingerprint(config: Any) -> dict[str, Any]:
    """What a head and its target must share."""
    return {name: getattr(config, name) for name in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")}


class EagleDrafter(GrowingDrafter):
    def __init__(self, model: EagleNetwork, target: CausalTarget, plan: Plan, rank: Rank) -> None:
        self.model = model.eval()
        super().__init__(Network(model.layer, model.config, capacity=target.capacity, narrowest=1), target, plan, rank)

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        embeddings = self.target.embed(tokens)[:, None].expand(-1, features.shape[1], -1, -1)
        return self.model.fused(embeddings, features).flatten(0, 1)

    def logits(self, features: Tensor) -> Tensor:
        return self.target.head(features)

    def prompt(self, ids: Tensor, features: Tensor) -> tuple[Tensor, int]:
        return self.model.fused(self.target.embed(ids[:, 1:]), features[:, : ids.shape[1] - 1]), 1
