"""Published autoencoders as diffusers' own: what makes pictures of MAR's and NextStep's latents.

    convert(Path("kl16.ckpt"), Path("mar-base/vae"))
    pictures = pixels(load(Path("mar-base/vae"), device, dtype), latents)

Both are published as pickles, under the names of CompVis' latent diffusion (Rombach et al. 2022, "High-Resolution Image
Synthesis with Latent Diffusion Models"); MAR's is kl16.ckpt, NextStep's is vae/checkpoint.pt with a config.json beside.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.core.folders.door import read_model
from polydraft.modalities.checkpoints import misfits, tensors, write
from polydraft.modalities.hub import refuse_pickles, said
from polydraft.modalities.loading import read_weights

SOURCE = "its makers"
MAR_SCALE = 0.2325  # brings the latents of kl16 to unit variance; it has no file that says so
PARTS = ("encoder.", "decoder.", "quant_conv.", "post_quant_conv.")  # other tensors helped to train
RENAMED = (
    (r"\.mid\.block_1\.", ".mid_block.resnets.0."), (r"\.mid\.block_2\.", ".mid_block.resnets.1."),
    (r"\.mid\.attn_1\.", ".mid_block.attentions.0."), (r"\.block\.", ".resnets."), (r"\.attn\.", ".attentions."),
    (r"\.downsample\.", ".downsamplers.0."), (r"\.upsample\.", ".upsamplers.0."),
    (r"\.nin_shortcut\.", ".conv_shortcut."), (r"coder\.norm_out\.", "coder.conv_norm_out."),
    (r"(attentions\.\d+)\.norm\.", r"\1.group_norm."), (r"(attentions\.\d+)\.([qkv])\.", r"\1.to_\2."),
    (r"(attentions\.\d+)\.proj_out\.", r"\1.to_out.0."),
)  # fmt: skip


def convert(checkpoint: Path, out: Path) -> Any:
    """Write the autoencoder of `checkpoint` to the folder `out`, whole or not at all; diffusers' AutoencoderKL.

    Raises WeightsError for a file that is none, OutputUnwritable where `out` is already there or cannot be made.
    """
    found = tensors(checkpoint, "model", SOURCE, bare=True)
    fields = said(checkpoint.parent / "config.json")
    own = fields if "z_channels" in fields else {}
    weights = {name: tensor for name, tensor in found.items() if name.startswith(PARTS)}
    form = shape(checkpoint, weights)
    if not own and not form["use_post_quant_conv"]:  # kl16 has one, NextStep's has none
        raise WeightsError(f"{checkpoint} needs the config.json published with it, for its scale; put it beside.")
    model: Any = AutoencoderKL(
        **form, scaling_factor=own.get("scaling_factor", MAR_SCALE),
        shift_factor=own.get("shift_factor", 0.0),
    )  # fmt: skip
    levels = len(model.config.block_out_channels)
    renamed = {rename(name, levels): squared(name, tensor) for name, tensor in weights.items()}
    if wrong := misfits(model.state_dict(), renamed):
        raise WeightsError(
            f"{len(wrong)} tensors of {checkpoint} do not fit an autoencoder, the first is {wrong[0]}; "
            f"download it again from {SOURCE}."
        )
    model.load_state_dict(renamed)
    write(out, lambda folder: model.save_pretrained(folder))
    return model


def rename(name: str, levels: int) -> str:
    """diffusers' name of a tensor; its decoder counts levels from the smallest pictures."""
    name = name.replace("encoder.down.", "encoder.down_blocks.")
    name = re.sub(r"decoder\.up\.(\d+)\.", lambda found: f"decoder.up_blocks.{levels - 1 - int(found[1])}.", name)
    for pattern, written in RENAMED:
        name = re.sub(pattern, written, name)
    return name


def squared(name: str, tensor: Tensor) -> Tensor:
    """Attention's projections, convolutions of one pixel, as matrices."""
    return tensor[:, :, 0, 0] if ".attn" in name and tensor.ndim == 4 else tensor


def shape(checkpoint: Path, weights: dict[str, Tensor]) -> dict[str, Any]:
    """What diffusers' AutoencoderKL wants to be told, read from names and shapes."""
    try:
        levels = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.down."))
        widths = [weights[f"encoder.down.{level}.block.0.conv1.weight"].shape[0] for level in range(levels)]
        blocks = 1 + max(int(name.split(".")[4]) for name in weights if name.startswith("encoder.down.0.block."))
        latent, pixels_in = (weights[f"{half}.conv_in.weight"].shape[1] for half in ("decoder", "encoder"))
        pixels_out = weights["decoder.conv_out.weight"].shape[0]
    except (KeyError, ValueError, IndexError) as error:
        raise WeightsError(f"{checkpoint} holds no autoencoder; download one from {SOURCE}.") from error

    def kinds(half: str, order: range, plain: str) -> list[str]:
        seen = (any(name.startswith(f"{half}.{level}.attn.") for name in weights) for level in order)
        return [f"Attn{plain}" if attends else plain for attends in seen]

    return {
        "in_channels": pixels_in, "out_channels": pixels_out, "latent_channels": latent, "layers_per_block": blocks,
        "block_out_channels": widths, "norm_num_groups": 32,
        "down_block_types": kinds("encoder.down", range(levels), "DownEncoderBlock2D"),
        "up_block_types": kinds("decoder.up", range(levels)[::-1], "UpDecoderBlock2D"),
        "use_quant_conv": "quant_conv.weight" in weights, "use_post_quant_conv": "post_quant_conv.weight" in weights,
    }  # fmt: skip


def load(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """The autoencoder in `folder`, as `convert` leaves it. Raises WeightsError."""

    refuse_pickles(folder)

    def read() -> Any:
        made: Any = read_model("autoencoder", AutoencoderKL, folder, dtype=dtype, low_cpu_mem_usage=False)
        made.to(device).eval().requires_grad_(False)
        return made

    return read_weights("autoencoder", folder, read)


def pixels(model: Any, latents: Tensor) -> Tensor:
    """Pictures `[B, 3, H, W]` in about -1 to 1, fp32, of latents `[B, C, h, w]` as the models draw them."""
    scaled = latents.to(model.dtype) / model.config.scaling_factor + (model.config.shift_factor or 0)
    made: Tensor = model.decode(scaled).sample.float()
    return made
