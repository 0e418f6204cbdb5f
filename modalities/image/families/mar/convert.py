"""Published MAR checkpoints as folders of safetensors and JSON.

    convert(Path("checkpoint-last.pth"), Path("mar-base"))

The averaged weights are taken (`model_ema`). Only tensors and plain values are read: a file with code in it is refused.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.modalities.image.families.checkpoint import check, folder, tensors, vacant
from polydraft.modalities.image.families.mar.config import SIZES, MARConfig
from polydraft.modalities.image.families.mar.network import MAR

AVERAGED, TRAINED = "model_ema", "model"
HEADS = {config.width: config.heads for config in SIZES.values()}  # weights do not tell how many
AGAIN = "download it again from github.com/LTH14/mar"


def convert(checkpoint: Path, out: Path) -> MARConfig:
    """Write the model of `checkpoint` to the folder `out`, whole or not at all; its shape.

    Raises WeightsError for a file that is no MAR, OutputUnwritable where `out` is already there or cannot be made.
    """
    vacant(out)
    weights = averaged(checkpoint)
    config = shape(checkpoint, weights)
    with torch.device("meta"):
        wanted = {name: tensor.shape for name, tensor in MAR(config).state_dict().items()}
    found = {name: tensor.shape for name, tensor in weights.items()}
    check(checkpoint, f"a MAR of width {config.width}", found, wanted, AGAIN)
    with folder(out) as made:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, made / "model.safetensors")
        (made / "config.json").write_text(json.dumps(asdict(config), indent=2) + "\n")
    return config


def averaged(checkpoint: Path) -> dict[str, Tensor]:
    """The averaged weights of a checkpoint."""
    said = tensors(checkpoint, AGAIN, [argparse.Namespace])  # the options it was trained with
    weights = said.get(AVERAGED) if isinstance(said, Mapping) else None
    if not isinstance(weights, Mapping) or not all(isinstance(part, Tensor) for part in weights.values()):
        raise WeightsError(f"{checkpoint} holds no averaged weights ({AVERAGED}); {AGAIN}.")
    return {str(name): tensor.detach() for name, tensor in weights.items()}


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
        raise WeightsError(f"{checkpoint} holds the weights of another model than MAR; {AGAIN}.") from error
    if width not in HEADS:
        raise WeightsError(f"{checkpoint} is a MAR of width {width}; convert one of {', '.join(SIZES)}.")
    side = round(length**0.5)
    return MARConfig(
        width, count("encoder_blocks"), HEADS[width], head_width, count("diffloss.net.res_blocks"), side=side,
        channels=size, classes=classes, buffer=buffer,
    )  # fmt: skip
