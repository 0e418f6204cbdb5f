"""LlamaGen as transformers' Llama over a grid: rotary positions of rows and columns, and embeddings of prompts.

    model = load_model(Path("llamagen-xl"), torch.device("cuda"), torch.bfloat16)
    model.cls_embedding(features), model.model(inputs_embeds=..., position_ids=positions)

Published weights rotate neighbouring numbers of a head, transformers' Llama numbers half a head apart; queries and keys
are reordered when they are loaded (`to_transformers_names`), which changes no product of theirs. Prompts are not
rotated but multiplied by zero: published tables of rotary positions begin with zeros, so that a caption's positions are
all alike to each other, and to a code those of the caption say nothing by which it could tell them apart.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from polydraft.core.folders.sizes import check_layers, check_tensors
from polydraft.core.folders.weight_files import read_tensors
from polydraft.modalities.image.families.llamagen.config import LlamaGenConfig
from polydraft.modalities.weights import read_weights

THETA = 10_000.0
TRANSFORMERS_RENAMES = (
    (r"^tok_embeddings\.", "model.embed_tokens."), (r"^norm\.", "model.norm."), (r"^output\.", "lm_head."),
    (r"^layers\.", "model.layers."), (r"\.attention\.wo\.", ".self_attn.o_proj."),
    (r"\.feed_forward\.w1\.", ".mlp.gate_proj."), (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
    (r"\.feed_forward\.w2\.", ".mlp.down_proj."), (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
)  # fmt: skip
FUSED_QKV = ".attention.wqkv."


class GridRotaryEmbedding(nn.Module):
    """Cosines and sines `[B, C, D]` of positions behind the prompt `[B, C]`, zeros for positions within it.

    The first half of a head's pairs rotates with the row, the second with the column.
    """

    rates: Tensor

    def __init__(self, side: int, size: int) -> None:
        super().__init__()
        self.side: int = side
        half = size // 2
        rates = 1.0 / (THETA ** (torch.arange(0, half, 2).float() / half))
        self.register_buffer("rates", rates, persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cells = torch.stack([position_ids // self.side, position_ids % self.side], -1)
        angles = (cells[..., None] * self.rates).flatten(-2)
        angles, is_generated = torch.cat([angles, angles], -1), (position_ids >= 0)[..., None]
        return (angles.cos() * is_generated).to(x.dtype), (angles.sin() * is_generated).to(x.dtype)


class CaptionEmbedder(nn.Module):
    """Projection of a caption's features `[L, caption]` to the backbone's inputs, and features of no caption."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        fc1, fc2 = (nn.Linear(size, config.width, bias=False) for size in (config.caption, config.width))
        self.cap_proj: nn.ModuleDict = nn.ModuleDict({"fc1": fc1, "fc2": fc2})
        self.uncond_embedding: nn.Parameter = nn.Parameter(torch.empty(config.prompt, config.caption))

    def forward(self, features: Tensor) -> Tensor:
        embeddings: Tensor = self.cap_proj["fc2"](F.gelu(self.cap_proj["fc1"](features), approximate="tanh"))
        return embeddings


class ClassEmbedder(nn.Module):
    """Embeddings of classes `[L]`; the last class is none."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.embedding_table: nn.Embedding = nn.Embedding(config.classes + 1, config.width)

    def forward(self, labels: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding_table(labels)
        return embeddings


def build_on_meta(config: LlamaGenConfig) -> Any:
    """Build the model without weights, on the meta device."""
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config.llama)
        model.cls_embedding = CaptionEmbedder(config) if config.reads_text else ClassEmbedder(config)
    return model


def load_model(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """Load the model that `polydraft convert llamagen` left in `folder`.

    Raises:
        WeightsError: it cannot be loaded.
    """
    check_layers(folder)
    config = LlamaGenConfig.read(folder)

    def load_weights() -> Any:
        model = build_on_meta(config)
        model.model.rotary_emb = GridRotaryEmbedding(config.side, config.width // config.heads)
        weights = to_transformers_names(read_tensors(folder / "model.safetensors"), config.heads)
        check_tensors(lambda: build_on_meta(config), weights, folder / "model.safetensors")
        model.load_state_dict({name: tensor.to(device, dtype) for name, tensor in weights.items()}, assign=True)
        model.model.rotary_emb.to(device)
        return model.eval().requires_grad_(False)

    return read_weights("weights", folder, load_weights)


def to_transformers_names(weights: dict[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Rename published weights as transformers does, and reorder queries and keys."""
    renamed = {}
    for name, tensor in weights.items():
        new_name = name
        for pattern, replacement in TRANSFORMERS_RENAMES:
            new_name = re.sub(pattern, replacement, new_name)
        if FUSED_QKV not in name:
            renamed[new_name] = tensor
            continue
        queries, keys, values = tensor.chunk(3)
        for part, weight in (
            ("q", split_rotary_pairs(queries, heads)),
            ("k", split_rotary_pairs(keys, heads)),
            ("v", values),
        ):
            renamed[new_name.replace(FUSED_QKV, f".self_attn.{part}_proj.")] = weight.contiguous()
    return renamed


def split_rotary_pairs(weight: Tensor, heads: int) -> Tensor:
    """Return a head's rows with the first of all pairs before the second of all pairs."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def published_tensors(config: LlamaGenConfig) -> dict[str, Tensor]:
    """Return meta tensors under the published names."""
    renamed: dict[str, Tensor] = {}
    state_dict = build_on_meta(config).state_dict()
    for name, tensor in state_dict.items():
        for pattern, replacement in TRANSFORMERS_RENAMES:
            name = name.replace(replacement, re.sub(r"[\^\\]", "", pattern))
        if ".self_attn." not in name:
            renamed[name] = tensor
        elif ".q_proj." in name:
            parts = [state_dict[f"model.{name}".replace(".q_", f".{part}_")] for part in "qkv"]
            renamed[name.replace(".self_attn.q_proj.", FUSED_QKV)] = torch.cat(parts)
    return renamed
