"""Targets that engine benches run on: shapes of known models with random weights, or embedded models' own targets.

target = target_of("smolvlm", device, torch.bfloat16)
target, peer = pair_of("tiny-vlm", device, torch.float32)      # peer: the same weights, untouched, for `generate`
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedModel

from polydraft.apps.bench.measure.peers import untouched
from polydraft.core.errors import InvalidArgument
from polydraft.core.target import CausalTarget
from polydraft.modalities.loading import DTYPES, load, models

SEED = 0
CONFIGS: dict[str, Any] = {
    "llava-1.6-7b": LlamaConfig(
        vocab_size=32064, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
        max_position_embeddings=4096,
    ),
    "pixtral-12b": MistralConfig(
        vocab_size=131072, hidden_size=5120, intermediate_size=14336, num_hidden_layers=40, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, sliding_window=None, max_position_embeddings=4096,
    ),
    "smolvlm": LlamaConfig(
        vocab_size=49280, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=False,
    ),
    "small": LlamaConfig(
        vocab_size=8192, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
        max_position_embeddings=4096,
    ),
}  # fmt: skip


def check(shape: str) -> None:
    """Refuse a name that is neither a shape nor an embedded model."""
    if shape not in CONFIGS and shape not in (names := [model.name for model in models()]):
        raise InvalidArgument(f"shape {shape!r} is unknown; use one of {', '.join([*CONFIGS, *names])}.")


def target_of(shape: str, device: torch.device, dtype: torch.dtype) -> CausalTarget:
    """Ready to score."""
    check(shape)
    if shape in CONFIGS:
        return CausalTarget(random_model(CONFIGS[shape], device, dtype))
    return load(shape, device=str(device), dtype=name_of(dtype)).target()


def pair_of(shape: str, device: torch.device, dtype: torch.dtype) -> tuple[CausalTarget, PreTrainedModel]:
    """The target, and a copy of its model as transformers made it, which generates on without an end."""
    check(shape)
    if shape in CONFIGS:
        model = random_model(CONFIGS[shape], device, dtype)
        peer = copy.deepcopy(model)
        target = CausalTarget(model)
    else:
        pipe = load(shape, device=str(device), dtype=name_of(dtype))
        target, peer = pipe.target(), untouched(pipe)
    assert peer.generation_config is not None
    peer.generation_config.eos_token_id = None
    return target, peer


def random_model(config: Any, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """The same weights every time; not to be trained."""
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(SEED)
        return AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=dtype).eval().requires_grad_(False)


def name_of(dtype: torch.dtype) -> str:
    return next(name for name, value in DTYPES.items() if value is dtype)


def bytes_of(module: nn.Module) -> int:
    """Of all weights, each once."""
    return sum(weight.numel() * weight.itemsize for weight in module.parameters())
