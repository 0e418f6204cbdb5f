"""Folders of small random MARs, as `polydraft convert` leaves them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file

from polydraft.modalities.image.families.mar.config import MARConfig

from .conftest import TINY, tiny_mar


def write(folder: Path, config: MARConfig = TINY, seed: int = 0) -> Path:
    """Write a model and its autoencoder of two pixels per latent."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tiny_mar(config, seed).state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(asdict(config)))
    torch.manual_seed(1)
    AutoencoderKL(
        latent_channels=config.channels, block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4, scaling_factor=0.2325,
    ).save_pretrained(folder / "vae")  # fmt: skip
    return folder
