"""The published autoencoder of NextStep, a pickle under the names of latent diffusion, in the form diffusers reads.

    convert(Path("NextStep-1-f8ch16-Tokenizer/checkpoint.pt"), Path("nextstep-vae"))

Names are changed by diffusers' own conversion. The encoder comes along; unlike the published one it does not bring its
latents to mean 0 and variance 1, which drawing has no use for. Only tensors are read: a file with code is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.modalities.hub import said
from polydraft.modalities.image.families.checkpoint import check, folder, tensors, vacant
from polydraft.modalities.image.families.nextstep.config import AUTOENCODER

AGAIN = f"download it again from huggingface.co/{AUTOENCODER}"
FIELDS = ("ch", "ch_mult", "num_res_blocks", "z_channels", "scaling_factor", "shift_factor")
GROUPS = 32  # groups of every norm


def convert(checkpoint: Path, out: Path) -> dict[str, Any]:
    """Write the autoencoder of `checkpoint`, whose config.json lies beside it, to the folder `out`; its configuration.

    Whole or not at all. Raises WeightsError for another file, OutputUnwritable where `out` is already there or cannot
    be made.
    """
    vacant(out)
    weights = tensors(checkpoint, AGAIN)
    if not isinstance(weights, Mapping) or not all(isinstance(part, Tensor) for part in weights.values()):
        raise WeightsError(f"{checkpoint} holds more than tensors by name; {AGAIN}.")
    config = shape(checkpoint.with_name("config.json"))
    with torch.device("meta"):
        vae = AutoencoderKL(**config)
    renamed = convert_ldm_vae_checkpoint(dict(weights), config)
    found, wanted = ({name: tensor.shape for name, tensor in part.items()} for part in (renamed, vae.state_dict()))
    check(checkpoint, "its config.json", found, wanted, AGAIN)
    vae.load_state_dict(renamed, assign=True)
    with folder(out) as made:
        vae.save_pretrained(made)
    return config


def shape(file: Path) -> dict[str, Any]:
    """What diffusers is told, of the published config.json."""
    fields = said(file)
    if missing := [name for name in FIELDS if name not in fields]:
        raise WeightsError(f"{file} says no {', '.join(missing)}; put the published config.json beside the checkpoint.")
    widths = [fields["ch"] * times for times in fields["ch_mult"]]
    return {
        "in_channels": fields.get("in_channels", 3), "out_channels": fields.get("out_ch", 3),
        "latent_channels": fields["z_channels"], "block_out_channels": widths, "norm_num_groups": GROUPS,
        "layers_per_block": fields["num_res_blocks"], "scaling_factor": fields["scaling_factor"],
        "shift_factor": fields["shift_factor"], "use_quant_conv": False, "use_post_quant_conv": False,
        "down_block_types": ["DownEncoderBlock2D"] * len(widths), "up_block_types": ["UpDecoderBlock2D"] * len(widths),
    }  # fmt: skip
