"""Conversion of published MAR checkpoints to folders of safetensors and JSON.

    convert(Path("checkpoint-last.pth"), Path("mar-base"))

The averaged weights are converted (`model_ema`).
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.modalities.checkpoints import load_tensors, mismatched_tensors, write_folder
from polydraft.modalities.image.families.mar.config import PUBLISHED_CONFIGS, MARConfig
from polydraft.modalities.image.families.mar.network import MAR

EMA_KEY = "model_ema"
# Weights do not tell the number of heads.
HEADS_BY_WIDTH = {config.width: config.heads for config in PUBLISHED_CONFIGS.values()}
SOURCE = "github.com/LTH14/mar"


def convert(checkpoint: Path, out: Path) -> MARConfig:
    """Convert the model in `checkpoint` to the folder `out`, written completely or not at all.

    Returns:
        MARConfig: the model's shape.

    Raises:
        WeightsError: the file is no MAR.
        OutputUnwritable: `out` exists or cannot be made.
    """
    weights = load_tensors(checkpoint, EMA_KEY, SOURCE)
    config = infer_config(checkpoint, weights)
    with torch.device("meta"):
        mismatches = mismatched_tensors(MAR(config).state_dict(), weights)
    if mismatches:
        raise WeightsError(
            f"{len(mismatches)} tensors of {checkpoint} do not fit a MAR of width {config.width}, the first is "
            f"{mismatches[0]}; download it again from {SOURCE}."
        )

    def fill(folder: Path) -> None:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(asdict(config), indent=2) + "\n")

    write_folder(out, fill)
    return config


def infer_config(checkpoint: Path, weights: dict[str, Tensor]) -> MARConfig:
    """Infer the configuration from names and shapes of tensors."""

    def count(blocks: str) -> int:
        matches = (re.match(rf"{re.escape(blocks)}\.(\d+)\.", name) for name in weights)
        return 1 + max((int(match[1]) for match in matches if match), default=-1)

    try:
        classes, width = weights["class_emb.weight"].shape
        head_width, size = weights["diffloss.net.input_proj.weight"].shape
        length = weights["diffusion_pos_embed_learned"].shape[1]
        buffer = weights["encoder_pos_embed_learned"].shape[1] - length
    except (KeyError, ValueError, IndexError) as error:
        raise WeightsError(
            f"{checkpoint} holds the weights of another model than MAR; download one from {SOURCE}."
        ) from error
    if width not in HEADS_BY_WIDTH:
        raise WeightsError(f"{checkpoint} is a MAR of width {width}; convert one of {', '.join(PUBLISHED_CONFIGS)}.")
    return MARConfig(
        width, count("encoder_blocks"), HEADS_BY_WIDTH[width], head_width, count("diffloss.net.res_blocks"),
        side=round(length**0.5), channels=size, classes=classes, buffer=buffer,
    )  # fmt: skip
