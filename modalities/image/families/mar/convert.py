"""Published MAR checkpoints as folders of safetensors and JSON.

    convert(Path("checkpoint-last.pth"), Path("mar-base"))

The averaged weights are taken (`model_ema`).
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
from polydraft.modalities.checkpoints import misfits, tensors, write
from polydraft.modalities.image.families.mar.config import SIZES, MARConfig
from polydraft.modalities.image.families.mar.network import MAR

AVERAGED = "model_ema"
HEADS = {config.width: config.heads for config in SIZES.values()}  # weights do not tell how many
SOURCE = "github.com/LTH14/mar"


def convert(checkpoint: Path, out: Path) -> MARConfig:
    """Write the model of `checkpoint` to the folder `out`, whole or not at all; its shape.

    Raises WeightsError for a file that is no MAR, OutputUnwritable where `out` is already there or cannot be made.
    """
    weights = tensors(checkpoint, AVERAGED, SOURCE)
    config = shape(checkpoint, weights)
    with torch.device("meta"):
        wrong = misfits(MAR(config).state_dict(), weights)
    if wrong:
        raise WeightsError(
            f"{len(wrong)} tensors of {checkpoint} do not fit a MAR of width {config.width}, the first is {wrong[0]}; "
            f"download it again from {SOURCE}."
        )

    def fill(folder: Path) -> None:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(asdict(config), indent=2) + "\n")

    write(out, fill)
    return config


def shape(checkpoint: Path, weights: dict[str, Tensor]) -> MARConfig:
    """The configuration that weights of these shapes have."""

    def count(blocks: str) -> int:
        found = (re.match(rf"{re.escape(blocks)}\.(\d+)\.", name) for name in weights)
        return 1 + max((int(match[1]) for match in found if match), default=-1)

    try:
        classes, width = weights["class_emb.weight"].shape
        head_width, size = weights["diffloss.net.input_proj.weight"].shape
        length = weights["diffusion_pos_embed_learned"].shape[1]
        buffer = weights["encoder_pos_embed_learned"].shape[1] - length
    except (KeyError, ValueError, IndexError) as error:
        raise WeightsError(
            f"{checkpoint} holds the weights of another model than MAR; download one from {SOURCE}."
        ) from error
    if width not in HEADS:
        raise WeightsError(f"{checkpoint} is a MAR of width {width}; convert one of {', '.join(SIZES)}.")
    return MARConfig(
        width, count("encoder_blocks"), HEADS[width], head_width, count("diffloss.net.res_blocks"),
        side=round(length**0.5), channels=size, classes=classes, buffer=buffer,
    )  # fmt: skip
