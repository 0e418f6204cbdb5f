"""Published LlamaGen checkpoints as folders of safetensors and JSON.

    convert(Path("t2i_XL_stage2_512.pt"), Path("llamagen-xl"), side=32)
    convert_pixels(Path("vq_ds16_t2i.pt"), Path("llamagen-xl/vq"))

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
from polydraft.modalities.checkpoints import misfits, tensors, write
from polydraft.modalities.image.families.llamagen.config import HEADS, KINDS, LlamaGenConfig
from polydraft.modalities.image.families.llamagen.network import published

SOURCE = "github.com/FoundationVision/LlamaGen"
KEYS = ("model", "module", "state_dict")  # of trainers of their own, of DeepSpeed, and of neither
SCRATCH = ("freqs_cis", "quantize.codebook_used")  # made anew, or of use in training alone
VQ = (
    (r"^encoder\.conv_blocks\.", "encoder.down."), (r"^decoder\.conv_blocks\.", "decoder.up."), (r"\.res\.", ".block."),
    (r"\.mid\.0\.", ".mid.block_1."), (r"\.mid\.1\.", ".mid.attn_1."), (r"\.mid\.2\.", ".mid.block_2."),
)  # fmt: skip


def convert(checkpoint: Path, out: Path, side: int | None = None) -> LlamaGenConfig:
    """Write the model of `checkpoint` to the folder `out`, whole or not at all; its shape.

    side: codes a side, which weights do not tell; of the largest pictures of its kind unless given. Raises WeightsError
    for a file that is no LlamaGen, OutputUnwritable where `out` is already there or cannot be made.
    """
    weights = read(checkpoint)
    config = shape(checkpoint, weights)
    config = config if side is None else replace(config, side=side)
    fit(checkpoint, published(config), weights, f"a LlamaGen of width {config.width}")

    def fill(folder: Path) -> None:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config.fields, indent=2) + "\n")

    write(out, fill)
    return config


def convert_pixels(checkpoint: Path, out: Path) -> Any:
    """The same of what makes pixels of codes; its configuration."""
    from transformers import JanusVQVAE, JanusVQVAEConfig

    weights = renamed(read(checkpoint))
    try:
        codes, size = weights["quantize.embedding.weight"].shape
        base = weights["encoder.conv_in.weight"].shape[0]
        levels = 1 + max(int(found[1]) for name in weights if (found := re.match(r"encoder\.down\.(\d+)\.", name)))
        widths = [weights[f"encoder.down.{level}.block.0.conv1.weight"].shape[0] for level in range(levels)]
        config = JanusVQVAEConfig(
            num_embeddings=codes, embed_dim=size, base_channels=base, channel_multiplier=[w // base for w in widths],
            latent_channels=weights["post_quant_conv.weight"].shape[0], num_res_blocks=blocks(weights),
        )  # fmt: skip
    except (KeyError, ValueError) as error:
        raise WeightsError(f"{checkpoint} makes no pixels of codes; download one from {SOURCE}.") from error
    with torch.device("meta"):
        model: Any = JanusVQVAE(config)
    fit(checkpoint, model.state_dict(), weights, "a tokenizer of pictures as LlamaGen's")
    model.load_state_dict(weights, assign=True)
    write(out, model.save_pretrained)
    return config


def read(checkpoint: Path) -> dict[str, Tensor]:
    weights = tensors(checkpoint, KEYS, SOURCE, bare=True)
    return {name: tensor for name, tensor in weights.items() if name not in SCRATCH}


def renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a tokenizer of pictures, under transformers' names."""
    made = {}
    for name, tensor in weights.items():
        for pattern, other in VQ:
            name = re.sub(pattern, other, name)
        made[name] = tensor
    return made


def blocks(weights: dict[str, Tensor]) -> int:
    """Residual blocks a level."""
    return sum(re.fullmatch(r"encoder\.down\.0\.block\.\d+\.conv1\.weight", name) is not None for name in weights)


def fit(checkpoint: Path, wanted: dict[str, Tensor], found: dict[str, Tensor], what: str) -> None:
    if wrong := misfits(wanted, found):
        raise WeightsError(
            f"{len(wrong)} tensors of {checkpoint} do not fit {what}, the first is {wrong[0]}; download it again from "
            f"{SOURCE}."
        )


def shape(checkpoint: Path, weights: dict[str, Tensor]) -> LlamaGenConfig:
    """The configuration that weights of these shapes have."""
    layers = [int(found[1]) for name in weights if (found := re.match(r"layers\.(\d+)\.", name))]
    kind = next((kind for kind, mark in zip(KINDS, MARKS, strict=True) if mark in weights), None)
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
    if width not in HEADS:
        known = ", ".join(map(str, HEADS))
        raise WeightsError(f"{checkpoint} is a LlamaGen of width {width}; convert one of width {known}.")
    made = LlamaGenConfig(kind, width, 1 + max(layers), HEADS[width], feed, KINDS[kind], codes)
    if kind == "llamagen_c2i":
        return replace(made, prompt=1, classes=len(weights[MARKS[1]]) - 1)
    prompt, caption = weights[MARKS[0]].shape
    return replace(made, prompt=prompt, caption=caption)


MARKS = ("cls_embedding.uncond_embedding", "cls_embedding.embedding_table.weight")  # of every kind
