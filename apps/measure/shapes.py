"""Targets that engine benches run on: shapes of known models with random weights, or embedded models' own targets.

target = target_of("smolvlm", device, torch.bfloat16)
target = target_of("emu3/16", device, torch.bfloat16)          # its widths, heads, layers and ids divided by 16
target, peer = pair_of("tiny-vlm", device, torch.float32)      # peer: the same weights, untouched, for `generate`

For image models the ids are codes, and the pixel decoder is left out.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, Glm4Config, LlamaConfig, MistralConfig, PreTrainedModel

from polydraft.apps.measure.peers.generate import untouched
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.errors import InvalidArgument
from polydraft.core.target.causal import CausalTarget
from polydraft.modalities.device_dtype import DTYPES
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import embedded_models

SEED = 0
DIVIDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def drawing(codes: int, width: int, inner: int, layers: int, heads: int, shared: int, context: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=codes, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=shared, max_position_embeddings=context,
        tie_word_embeddings=False,
    )  # fmt: skip


PICTURES: dict[str, Any] = {
    "janus-pro-1b": drawing(16384, 2048, 5632, 24, 16, 16, 16384),
    "janus-pro-7b": drawing(16384, 4096, 11008, 30, 32, 32, 16384),
    "emu3": drawing(32769, 4096, 14336, 32, 32, 8, 9216),
    "glm-image": Glm4Config(
        vocab_size=16512, hidden_size=4096, intermediate_size=13696, num_hidden_layers=40, num_attention_heads=32,
        num_key_value_heads=2, head_dim=128, attention_bias=True, max_position_embeddings=131072,
        tie_word_embeddings=False, pad_token_id=None, eos_token_id=None,
    ),
    "lumina-mgpt-7b": drawing(8193, 4096, 11008, 32, 32, 32, 10240),
    "llamagen-xl": drawing(16384, 1280, 3584, 36, 20, 20, 1280),
}  # fmt: skip
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
    "smollm2-135m": LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    ),
    "llama-3.2-1b": LlamaConfig(  # without its scaled positions, which random weights make no use of
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=131072, tie_word_embeddings=True, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    ),
    "small": LlamaConfig(
        vocab_size=8192, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
        max_position_embeddings=4096,
    ),
} | PICTURES  # fmt: skip


def config_of(shape: str) -> Any:
    """Return the configuration of a shape, or of a divided one; None for other names."""
    name, _, divisor = shape.partition("/")
    if shape in CONFIGS or name not in CONFIGS or not divisor.isdigit():
        return CONFIGS.get(shape)
    return divided(name, int(divisor))


def divided(name: str, divisor: int) -> Any:
    """Return the configuration of a shape with sizes divided by `divisor`; head widths stay."""
    config = CONFIGS[name]
    if divisor < 1 or config.num_attention_heads % divisor:
        raise InvalidArgument(
            f"{divisor} does not divide the {config.num_attention_heads} heads of {name}; use a number that does, or 4."
        )
    settings = {field: max(1, getattr(config, field) // divisor) for field in DIVIDED}
    settings["num_key_value_heads"] = max(1, config.num_key_value_heads // divisor)
    return type(config)(**(config.to_dict() | settings))


def check(shape: str) -> None:
    """Refuse a name that is neither a shape nor an embedded model."""
    if config_of(shape) is None and shape not in (names := [model.name for model in embedded_models()]):
        known = [*CONFIGS, *names]
        raise InvalidArgument(f"shape {shape!r} is unknown{did_you_mean(shape, known)}; use one of {', '.join(known)}.")


def target_of(shape: str, device: torch.device, dtype: torch.dtype) -> CausalTarget:
    """Ready to score."""
    check(shape)
    if (config := config_of(shape)) is not None:
        return CausalTarget(random_model(config, device, dtype))
    return load(shape, device=str(device), dtype=name_of(dtype)).target()


def pair_of(shape: str, device: torch.device, dtype: torch.dtype) -> tuple[CausalTarget, PreTrainedModel]:
    """Build the target, and a copy of its model by transformers that never stops generating."""
    check(shape)
    if (config := config_of(shape)) is not None:
        model = random_model(config, device, dtype)
        peer = copy.deepcopy(model)
        target = CausalTarget(model)
    else:
        pipe = load(shape, device=str(device), dtype=name_of(dtype))
        target, peer = pipe.target(), untouched(pipe)
    assert peer.generation_config is not None
    peer.generation_config.eos_token_id = None
    return target, peer


def random_model(config: Any, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Build a model with the same random weights every time; not to be trained."""
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(SEED)
        return AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=dtype).eval().requires_grad_(False)


def name_of(dtype: torch.dtype) -> str:
    return next(name for name, value in DTYPES.items() if value is dtype)


def bytes_of(module: nn.Module) -> int:
    """Return bytes of all weights, each counted once."""
    return sum(weight.numel() * weight.itemsize for weight in module.parameters())


def bytes_read(model: PreTrainedModel) -> int:
    """Return the bytes of weights that a pass reads: those of the layers and of the head, whose rows are all needed.

    Of embeddings that are not the head's a pass reads a few rows, which are not counted, and encoders read images once.
    """
    decoder: Any = cast(Any, model).get_decoder()
    return bytes_of(decoder) - bytes_of(model.get_input_embeddings()) + bytes_of(model.get_output_embeddings())


def pass_bytes(target: CausalTarget, model: PreTrainedModel, positions: int) -> tuple[int, int]:
    """Return the bytes that a plain pass must read at batch 1, and those of them that are keys and values.

    Args:
        target: Target that decodes, whose branches each have keys and values.
        model: Its weights.
        positions: Mean number of cached positions.
    """
    cached = target.num_branches * target.network.kv_bytes_per_position * positions
    return bytes_read(model) + cached, cached
