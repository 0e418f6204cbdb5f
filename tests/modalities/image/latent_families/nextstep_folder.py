"""Folders of small random NextSteps, in the form their makers publish them."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from polydraft.modalities.image.families.nextstep.config import NextStepConfig
from polydraft.modalities.image.families.nextstep.model import NextStep
from polydraft.modalities.image.families.nextstep.schedule import FlowSchedule

from .published_shapes import NEXTSTEP_CONFIG, RENAMED

SPECIAL = ("<|image_area|>", "<|begin_of_image|>", "<|end_of_image|>", "<|image_placeholder|>")
LETTERS = string.ascii_lowercase + string.digits + "* ,"
SMALL: dict[str, Any] = NEXTSTEP_CONFIG | {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "head_dim": 16,
    "num_key_value_heads": 1, "vocab_size": 48, "genloss_depth": 2, "genloss_width": 32, "num_channels": 2,
    "max_position_embeddings": 2048, "boi": len(LETTERS) + 1, "eoi": len(LETTERS) + 2,
    "image_placeholder_id": len(LETTERS) + 3,
}  # fmt: skip
SMALL_1: dict[str, Any] = {RENAMED.get(name, name): value for name, value in SMALL.items()}
# what layers change, and what a latent says beside what all latents say, is little, so that drafts are kept
SCALES = {"o_proj.weight": 0.005, "down_proj.weight": 0.005, "image_in_projector.weight": 0.02,
          "image_in_projector.bias": 1.0, "cond_embed.weight": 0.02}  # fmt: skip


def tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer of letters and NextStep's special tokens."""
    backend = Tokenizer(models.BPE({letter: id_ for id_, letter in enumerate(LETTERS)}, []))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made = PreTrainedTokenizerFast(tokenizer_object=backend)
    made.add_tokens(list(SPECIAL), special_tokens=True)
    return made


def vae(channels: int = 2) -> AutoencoderKL:
    return AutoencoderKL(
        latent_channels=channels, block_out_channels=(8,) * 4, down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, norm_num_groups=4, scaling_factor=0.5, shift_factor=0.25,
        use_quant_conv=False, use_post_quant_conv=False,
    )  # fmt: skip


def scale(name: str, scales: Mapping[str, float]) -> float:
    """Return the standard deviation of a tensor's values."""
    return next((found for end, found in scales.items() if name.endswith(end)), 0.2)


def save_model(folder: Path, fields: dict[str, Any] = SMALL, scales: Mapping[str, float] = SCALES) -> Path:
    """Write configuration, weights and tokenizer; `scales` are by the end of a weight's name."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    shapes = NextStep.empty(NextStepConfig.read(fields), FlowSchedule(2)).published()
    tensors = {name: torch.randn(tensor.shape) * scale(name, scales) for name, tensor in shapes.items()}
    for name in tensors:
        if name.endswith(("norm.weight", "in_ln.weight")):
            tensors[name] += 1
    save_file(tensors, folder / "model-00001-of-1.safetensors")
    (folder / "config.json").write_text(json.dumps(fields))
    tokenizer().save_pretrained(folder)
    return folder


def write(folder: Path, fields: dict[str, Any] = SMALL) -> Path:
    """Write the whole folder, with its autoencoder converted."""
    save_model(folder, fields)
    torch.manual_seed(1)
    vae().save_pretrained(folder / "vae")
    return folder
