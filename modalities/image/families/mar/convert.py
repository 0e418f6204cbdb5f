"""Published MAR checkpoints as folders of safetensors and JSON.

    convert(Path("checkpoint-last.pth"), Path("mar-base"))

The averaged weights are taken (`model_ema`). Only tensors and plain values are read: a file with code in it is refused.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from polydraft.core.errors import OutputUnwritable, WeightsError
from polydraft.modalities.image.families.mar.config import SIZES, MARConfig
from polydraft.modalities.image.families.mar.network import MAR

AVERAGED, TRAINED = "model_ema", "model"
HEADS = {config.width: config.heads for config in SIZES.values()}  # weights do not tell how many
AGAIN = "download it again from github.com/LTH14/mar"


def convert(checkpoint: Path, out: Path) -> MARConfig:
    """Write the model of `checkpoint` to the folder `out`, whole or not at all; its shape.

    Raises WeightsError for a file that is no MAR, OutputUnwritable where `out` is already there or cannot be made.
    """
    if out.exists():
        raise OutputUnwritable(f"{out} is already there; give a folder that is not.")
    weights = averaged(checkpoint)
    config = shape(checkpoint, weights)
    check(checkpoint, weights, config)
    made: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, made / "model.safetensors")
        (made / "config.json").write_text(json.dumps(asdict(config), indent=2) + "\n")
        made.chmod(0o755)
        made.rename(out)
    except OSError as error:
        raise OutputUnwritable(
            f"{out} cannot be written ({error.strerror or error!s:.80}); give another folder."
        ) from error
    finally:
        if made is not None and made.exists():
            shutil.rmtree(made, ignore_errors=True)
    return config


def averaged(checkpoint: Path) -> dict[str, Tensor]:
    """The averaged weights of a checkpoint."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # the options it was trained with
            said: Any = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError as error:
        raise WeightsError(f"{checkpoint} is not there; give a checkpoint of github.com/LTH14/mar.") from error
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{checkpoint} cannot be read as a checkpoint of tensors; {AGAIN}.") from error
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


def check(checkpoint: Path, weights: dict[str, Tensor], config: MARConfig) -> None:
    """Raise WeightsError unless names and shapes are those of a MAR of this configuration."""
    with torch.device("meta"):
        wanted = {name: tensor.shape for name, tensor in MAR(config).state_dict().items()}
    found = {name: tensor.shape for name, tensor in weights.items()}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        raise WeightsError(
            f"{len(wrong)} tensors of {checkpoint} do not fit a MAR of width {config.width}, the first is {wrong[0]}; "
            f"{AGAIN}."
        )
