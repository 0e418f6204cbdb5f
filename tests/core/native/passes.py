"""Tiny random models of every supported shape, and random passes over them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from polydraft.core.model.attention import fold_gqa_mask
from polydraft.core.model.cache import ExactViews, KVCache
from polydraft.core.model.decoder import TreeDecoder
from polydraft.core.model.linear import prepare_linears
from polydraft.core.native import library as native

VOCAB = 41
TORCH = "torch"  # in place of an instruction set
# largest `relative_distance` from fp32 computed by torch
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.15}


def sizes(heads: int, kv_heads: int, head_dim: int, hidden: int, intermediate: int) -> dict[str, Any]:
    """Return the settings of a model of two layers."""
    return {
        "vocab_size": VOCAB, "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": 2,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "pad_token_id": 0,
        "max_position_embeddings": 1024, "initializer_range": 0.2,
    }  # fmt: skip


CONFIGS = {
    "llama": LlamaConfig(**sizes(4, 2, 16, 64, 96)),
    "llama, biases": LlamaConfig(**sizes(3, 1, 24, 69, 37), attention_bias=True, mlp_bias=True),
    "mistral, wide group": MistralConfig(**sizes(8, 1, 40, 96, 33), sliding_window=None),
    "qwen2, small heads": Qwen2Config(**sizes(4, 4, 8, 32, 200)),
    "qwen3, large heads": Qwen3Config(**sizes(3, 3, 128, 51, 65)),
    "qwen3, odd heads": Qwen3Config(**sizes(4, 2, 20, 92, 31)),
    "layer norms": LlamaConfig(**sizes(2, 2, 48, 100, 130)),
    "gelu": LlamaConfig(**sizes(2, 1, 64, 48, 129), hidden_act="gelu_pytorch_tanh"),
}


def build_backbone(model: str, dtype: torch.dtype, **changes: Any) -> Any:
    """Return a frozen model of `CONFIGS` with changed settings, whose norms and biases do something."""
    config = copy.deepcopy(CONFIGS[model])
    config.update(changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = AutoModel.from_config(config).eval()
        if model == "layer norms":
            for layer in backbone.layers:
                for name in ("input_layernorm", "post_attention_layernorm"):
                    setattr(layer, name, nn.LayerNorm(config.hidden_size))
            backbone.norm = nn.LayerNorm(config.hidden_size, bias=False)
        for name, parameter in backbone.named_parameters():
            if parameter.ndim == 1:
                nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.3)
    # the same weights in every dtype
    return backbone.bfloat16().to(dtype).requires_grad_(False)


def prepare(backbone: Any, instruction_set: str) -> TreeDecoder:
    """Return the decoder of a backbone, computed by the library with an instruction set, or by torch."""
    with pytest.MonkeyPatch.context() as patch:
        if instruction_set == TORCH:
            patch.setenv(native.VARIABLE, "0")
        else:
            patch.setattr(native, "supported_instruction_sets", lambda: (instruction_set,))
        prepare_linears(backbone)
        decoder = TreeDecoder(backbone, backbone.config)
    assert decoder.fused_layers is not None
    assert (decoder.fused_layers.native is None) == (instruction_set == TORCH)
    return decoder


@dataclass(frozen=True)
class RandomPass:
    """Arguments of a pass over T new positions of consecutive cache rows."""

    tokens: Tensor  # [rows, T]
    positions: Tensor  # [rows, T]
    slots: Tensor  # [rows, T]
    visible: Tensor  # [rows, T, view_len]
    rows: slice

    def part(self, row: int, positions: slice) -> RandomPass:
        """Return some of the positions of one row."""
        index, first = slice(row, row + 1), self.rows.start + row
        parts = (values[index, positions] for values in (self.tokens, self.positions, self.slots, self.visible))
        return RandomPass(*parts, slice(first, first + 1))

    def widened(self, view_len: int) -> RandomPass:
        """Return the pass with a longer view."""
        return replace(self, visible=nn.functional.pad(self.visible, (0, view_len - self.visible.shape[2])))


def random_pass(kind: str, first_row: int, rows: int, num_new: int, view_len: int) -> RandomPass:
    """Return a pass over a "chain", a "tree" or "scattered" slots, over prefixes of different lengths.

    A tree's nodes come after their ancestors, so that any first ones can run before the others.
    """
    prefix = torch.randint(0, view_len - num_new + 1, (rows, 1))
    slots = prefix + torch.arange(num_new)
    visible = (torch.arange(view_len) < prefix)[:, None].repeat(1, num_new, 1)
    depth = torch.zeros(rows, num_new, dtype=torch.long)
    if kind == "scattered":
        slots = torch.stack([torch.randperm(view_len)[:num_new] for _ in range(rows)])
        visible = torch.rand(rows, num_new, view_len) < 0.5
        depth = torch.randint(0, view_len, (rows, num_new)) - prefix
    for row in range(rows):
        for node in range(num_new):
            if kind == "scattered":  # none attends to what a later one writes
                visible[row, node, slots[row, node:]] = False
            elif node:
                parent = node - 1 if kind == "chain" else int(torch.randint(0, node, ()))
                depth[row, node] = depth[row, parent] + 1
                visible[row, node] |= visible[row, parent]
            visible[row, node, slots[row, node]] = True
    tokens = torch.randint(1, VOCAB, (rows, num_new))  # the embedding of 0, the padding, is zero
    return RandomPass(tokens, prefix + depth, slots, visible, slice(first_row, first_row + rows))


def filled_cache(decoder: TreeDecoder, num_rows: int, num_slots: int, dtype: torch.dtype) -> KVCache:
    """Return a cache whose slots all hold random keys and values."""
    cache = KVCache(len(decoder.backbone.layers), 1, ExactViews())
    cache.add_rows(num_rows)
    cache.ensure_capacity(num_slots)
    heads, config = decoder.heads, decoder.config
    cache.storage_addresses(config.num_attention_heads // heads.group_size, heads.head_dim, dtype)
    for layer in cache.layers:
        for store in (layer.keys, layer.values):
            # the same numbers in every dtype
            store.copy_(torch.randn(store.shape).bfloat16())
    return cache


def copied_cache(decoder: TreeDecoder, cache: KVCache, dtype: torch.dtype | None = None) -> KVCache:
    """Return a copy of a cache, with all its rows and slots."""
    copied = filled_cache(decoder, cache.num_rows, cache.num_slots, dtype or cache.layers[0].keys.dtype)
    assert copied.num_slots == cache.num_slots
    for store, source in zip(stores(copied), stores(cache), strict=True):
        store.copy_(source)
    return copied


def stores(cache: KVCache) -> list[Tensor]:
    """Return keys and values of all layers, `[rows, kv_heads, slots, head_dim]` each."""
    return [store for layer in cache.layers for store in (layer.keys, layer.values)]


@torch.inference_mode()
def run_pass(decoder: TreeDecoder, cache: KVCache, given: RandomPass, embeddings: Tensor | None = None) -> Tensor:
    """Return the hidden states `[rows, T, D]` of a pass."""
    cache.ensure_capacity(given.visible.shape[2])
    cache.set_write_slots(given.slots, given.rows)
    mask = fold_gqa_mask(given.visible, decoder.dtype, decoder.heads)
    return decoder.forward(given.tokens if embeddings is None else embeddings, cache, given.positions, mask)


def relative_distance(given: Tensor, expected: Tensor) -> float:
    """Return the largest distance of a vector of the last dimension, relative to the mean length of all."""
    given, expected = given.double(), expected.double()
    return float((given - expected).norm(dim=-1).max() / expected.norm(dim=-1).mean())


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use a number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
