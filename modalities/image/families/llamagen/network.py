"""LlamaGen as transformers' Llama over a grid: rotary positions of rows and columns, and what stands for a prompt.

    model = load(Path("llamagen-xl"), torch.device("cuda"), torch.bfloat16)
    model.cls_embedding(features), model.model(inputs_embeds=..., position_ids=places)

Published weights turn neighbouring numbers of a head, transformers' Llama numbers half a head apart; queries and keys
are put in that order when they are loaded (`ours`), which changes no product of theirs. Prompts are not turned but
multiplied by zero: published tables of rotary positions begin with zeros, so that a caption's places are all alike to
each other, and to a code those of the caption say nothing by which it could tell them apart.
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
from polydraft.modalities.loading import read_weights

THETA = 10_000.0
RENAMED = (
    (r"^tok_embeddings\.", "model.embed_tokens."), (r"^norm\.", "model.norm."), (r"^output\.", "lm_head."),
    (r"^layers\.", "model.layers."), (r"\.attention\.wo\.", ".self_attn.o_proj."),
    (r"\.feed_forward\.w1\.", ".mlp.gate_proj."), (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
    (r"\.feed_forward\.w2\.", ".mlp.down_proj."), (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
)  # fmt: skip
TOGETHER = ".attention.wqkv."


class GridRotary(nn.Module):
    """Cosines and sines `[B, C, D]` of places behind the prompt `[B, C]`, zeros of those within it.

    The first half of a head's pairs turns with the row, the second with the column.
    """

    rates: Tensor

    def __init__(self, side: int, size: int) -> None:
        super().__init__()
        self.side, half = side, size // 2
        rates = 1.0 / (THETA ** (torch.arange(0, half, 2).float() / half))
        self.register_buffer("rates", rates, persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        spots = torch.stack([position_ids // self.side, position_ids % self.side], -1)
        angles = (spots[..., None] * self.rates).flatten(-2)
        angles, drawn = torch.cat([angles, angles], -1), (position_ids >= 0)[..., None]
        return (angles.cos() * drawn).to(x.dtype), (angles.sin() * drawn).to(x.dtype)


class Captions(nn.Module):
    """Features of a caption `[L, caption]` as the backbone reads them, and what it reads where there is none."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        into, out = (nn.Linear(size, config.width, bias=False) for size in (config.caption, config.width))
        self.cap_proj = nn.ModuleDict({"fc1": into, "fc2": out})
        self.uncond_embedding = nn.Parameter(torch.empty(config.prompt, config.caption))

    def forward(self, features: Tensor) -> Tensor:
        read: Tensor = self.cap_proj["fc2"](F.gelu(self.cap_proj["fc1"](features), approximate="tanh"))
        return read


class Classes(nn.Module):
    """Classes `[L]` as the backbone reads them; the last is none."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(config.classes + 1, config.width)

    def forward(self, labels: Tensor) -> Tensor:
        read: Tensor = self.embedding_table(labels)
        return read


def empty(config: LlamaGenConfig) -> Any:
    """Without weights, on the meta device."""
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config.llama)
        model.cls_embedding = Captions(config) if config.reads_text else Classes(config)
    return model


def load(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """The model that `polydraft convert llamagen` left in `folder`. Raises WeightsError."""
    check_layers(folder)
    config = LlamaGenConfig.read(folder)

    def read() -> Any:
        model = empty(config)
        model.model.rotary_emb = GridRotary(config.side, config.width // config.heads)
        weights = ours(read_tensors(folder / "model.safetensors"), config.heads)
        check_tensors(lambda: empty(config), weights, folder / "model.safetensors")
        model.load_state_dict({name: tensor.to(device, dtype) for name, tensor in weights.items()}, assign=True)
        model.model.rotary_emb.to(device)
        return model.eval().requires_grad_(False)

    return read_weights("weights", folder, read)


def ours(weights: dict[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Published weights under transformers' names."""
    made = {}
    for name, tensor in weights.items():
        own = name
        for pattern, other in RENAMED:
            own = re.sub(pattern, other, own)
        if TOGETHER not in name:
            made[own] = tensor
            continue
        queries, keys, values = tensor.chunk(3)
        for part, weight in (("q", halves(queries, heads)), ("k", halves(keys, heads)), ("v", values)):
            made[own.replace(TOGETHER, f".self_attn.{part}_proj.")] = weight.contiguous()
    return made


def halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of every head with the first of all pairs before the second of all pairs."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def published(config: LlamaGenConfig) -> dict[str, Tensor]:
    """Meta tensors under the published names."""
    made: dict[str, Tensor] = {}
    own = empty(config).state_dict()
    for name, tensor in own.items():
        for pattern, other in RENAMED:
            name = name.replace(other, re.sub(r"[\^\\]", "", pattern))
        if ".self_attn." not in name:
            made[name] = tensor
        elif ".q_proj." in name:
            parts = [own[f"model.{name}".replace(".q_", f".{part}_")] for part in "qkv"]
            made[name.replace(".self_attn.q_proj.", TOGETHER)] = torch.cat(parts)
    return made
