"""Conversion of published LlamaGen checkpoints to folders of safetensors and JSON.

    convert(Path("t2i_XL_stage2_512.pt"), Path("llamagen-xl"), side=32)
    convert_vq(Path("vq_ds16_t2i.pt"), Path("llamagen-xl/vq"))

Codes become pixels by transformers' `JanusVQVAE`, which has the same layers under other names.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.modalities.checkpoints import load_tensors, mismatched_tensors, write_folder
from polydraft.modalities.image.families.llamagen.config import HEADS_BY_WIDTH, LARGEST_SIDES, LlamaGenConfig
from polydraft.modalities.image.families.llamagen.network import published_tensors

SOURCE = "github.com/FoundationVision/LlamaGen"
CHECKPOINT_KEYS = ("model", "module", "state_dict")  # as different trainers name the weights
UNUSED_TENSORS = ("freqs_cis", "quantize.codebook_used")  # recomputed, or used only in training
VQ_RENAMES = (
    (r"^encoder\.conv_blocks\.", "encoder.down."), (r"^decoder\.conv_blocks\.", "decoder.up."), (r"\.res\.", ".block."),
    (r"\.mid\.0\.", ".mid.block_1."), (r"\.mid\.1\.", ".mid.attn_1."), (r"\.mid\.2\.", ".mid.block_2."),
)  # fmt: skip


def convert(checkpoint: Path, out: Path, side: int | None = None) -> LlamaGenConfig:
    """Convert the model in `checkpoint` to the folder `out`, written completely or not at all.

    Args:
        checkpoint (Path): a published file.
        out (Path): a folder that does not exist yet.
        side (int | None): codes per side, which weights do not tell; None is that of the largest images of its kind.

    Returns:
        LlamaGenConfig: the model's shape.

    Raises:
        WeightsError: the file is no LlamaGen.
        OutputUnwritable: `out` exists or cannot be made.
    """
    weights = read_checkpoint(checkpoint)
    config = infer_config(checkpoint, weights)
    config = config if side is None else replace(config, side=side)
    check_tensors_fit(checkpoint, published_tensors(config), weights, f"a LlamaGen of width {config.width}")

    def fill(folder: Path) -> None:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config.json_fields, indent=2) + "\n")

    write_folder(out, fill)
    return config


def convert_vq(checkpoint: Path, out: Path) -> Any:
    """Convert the image tokenizer in `checkpoint` to the folder `out`, written completely or not at all.

    Returns:
        JanusVQVAEConfig: its configuration.

    Raises:
        WeightsError: the file is no image tokenizer of LlamaGen.
        OutputUnwritable: `out` exists or cannot be made.
    """
    from transformers import JanusVQVAE, JanusVQVAEConfig

    weights = to_transformers_names(read_checkpoint(checkpoint))
    try:
        codes, size = weights["quantize.embedding.weight"].shape
        base = weights["encoder.conv_in.weight"].shape[0]
        levels = 1 + max(int(found[1]) for name in weights if (found := re.match(r"encoder\.down\.(\d+)\.", name)))
        widths = [weights[f"encoder.down.{level}.block.0.conv1.weight"].shape[0] for level in range(levels)]
        config = JanusVQVAEConfig(
            num_embeddings=codes, embed_dim=size, base_channels=base, channel_multiplier=[w // base for w in widths],
            latent_channels=weights["post_quant_conv.weight"].shape[0], num_res_blocks=count_residual_blocks(weights),
        )  # fmt: skip
    except (KeyError, ValueError) as error:
        raise WeightsError(f"{checkpoint} makes no pixels of codes; download one from {SOURCE}.") from error
    with torch.device("meta"):
        model: Any = JanusVQVAE(config)
    check_tensors_fit(checkpoint, model.state_dict(), weights, "an image tokenizer as LlamaGen's")
    model.load_state_dict(weights, assign=True)
    write_folder(out, model.save_pretrained)
    return config


def read_checkpoint(checkpoint: Path) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint, without those that are not used."""
    weights = load_tensors(checkpoint, CHECKPOINT_KEYS, SOURCE, bare=True)
    return {name: tensor for name, tensor in weights.items() if name not in UNUSED_TENSORS}


def to_transformers_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of an image tokenizer as transformers does."""
    renamed = {}
    for name, tensor in weights.items():
        for pattern, replacement in VQ_RENAMES:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    return renamed


def count_residual_blocks(weights: dict[str, Tensor]) -> int:
    """Return the number of residual blocks per level."""
    return sum(re.fullmatch(r"encoder\.down\.0\.block\.\d+\.conv1\.weight", name) is not None for name in weights)


def check_tensors_fit(checkpoint: Path, expected: dict[str, Tensor], actual: dict[str, Tensor], what: str) -> None:
    """Check that tensors have the names and shapes of a model."""
    if mismatches := mismatched_tensors(expected, actual):
        raise WeightsError(
            f"{len(mismatches)} tensors of {checkpoint} do not fit {what}, the first is {mismatches[0]}; "
            f"download it again from {SOURCE}."
        )


def infer_config(checkpoint: Path, weights: dict[str, Tensor]) -> LlamaGenConfig:
    """Infer the configuration from names and shapes of tensors."""
    layers = [int(found[1]) for name in weights if (found := re.match(r"layers\.(\d+)\.", name))]
    kind = next((kind for kind, mark in zip(LARGEST_SIDES, MARKER_TENSORS, strict=True) if mark in weights), None)
    try:
        codes, width = weights["output.weight"].shape
        feed = weights["layers.0.feed_forward.w1.weight"].shape[0]
    except (KeyError, ValueError) as error:
        kind, width, codes, feed = None, 0, 0, 0
        reason: Exception | None = error
    else:
        reason = None
    if kind is None:
        raise WeightsError(
            f"{checkpoint} holds the weights of another model than LlamaGen; download one from {SOURCE}."
        ) from reason
    if width not in HEADS_BY_WIDTH:
        known = ", ".join(map(str, HEADS_BY_WIDTH))
        raise WeightsError(f"{checkpoint} is a LlamaGen of width {width}; convert one of width {known}.")
    made = LlamaGenConfig(kind, width, 1 + max(layers), HEADS_BY_WIDTH[width], feed, LARGEST_SIDES[kind], codes)
    if kind == "llamagen_c2i":
        return replace(made, prompt=1, classes=len(weights[MARKER_TENSORS[1]]) - 1)
    prompt, caption = weights[MARKER_TENSORS[0]].shape
    return replace(made, prompt=prompt, caption=caption)


MARKER_TENSORS = ("cls_embedding.uncond_embedding", "cls_embedding.embedding_table.weight")  # one per kind
