"""Published autoencoders in diffusers' form, which decode the latents of MAR and NextStep.

    convert(Path("kl16.ckpt"), Path("mar-base/vae"))
    pixels = decode_latents(load_autoencoder(Path("mar-base/vae"), device, dtype), latents)

Both are published as pickles, under the names of CompVis' latent diffusion (Rombach et al. 2022, "High-Resolution Image
Synthesis with Latent Diffusion Models"); MAR's is kl16.ckpt, NextStep's is vae/checkpoint.pt beside a config.json.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.core.folders.json_files import read_json
from polydraft.core.folders.readers import read_model
from polydraft.modalities.checkpoints import load_tensors, mismatched_tensors, write_folder
from polydraft.modalities.weight_paths import refuse_pickles
from polydraft.modalities.weights import read_weights

SOURCE = "its makers"
MAR_SCALING_FACTOR = 0.2325  # brings the latents of kl16 to unit variance; no file of it holds the factor
PARTS = ("encoder.", "decoder.", "quant_conv.", "post_quant_conv.")  # other tensors are for training
DIFFUSERS_RENAMES = (
    (r"\.mid\.block_1\.", ".mid_block.resnets.0."), (r"\.mid\.block_2\.", ".mid_block.resnets.1."),
    (r"\.mid\.attn_1\.", ".mid_block.attentions.0."), (r"\.block\.", ".resnets."), (r"\.attn\.", ".attentions."),
    (r"\.downsample\.", ".downsamplers.0."), (r"\.upsample\.", ".upsamplers.0."),
    (r"\.nin_shortcut\.", ".conv_shortcut."), (r"coder\.norm_out\.", "coder.conv_norm_out."),
    (r"(attentions\.\d+)\.norm\.", r"\1.group_norm."), (r"(attentions\.\d+)\.([qkv])\.", r"\1.to_\2."),
    (r"(attentions\.\d+)\.proj_out\.", r"\1.to_out.0."),
)  # fmt: skip


def convert(checkpoint: Path, out: Path) -> Any:
    """Convert the autoencoder in `checkpoint` to the folder `out`, written completely or not at all.

    Returns:
        AutoencoderKL: diffusers' model.

    Raises:
        WeightsError: the file is no autoencoder.
        OutputUnwritable: `out` exists or cannot be made.
    """
    tensors_by_name = load_tensors(checkpoint, "model", SOURCE, bare=True)
    fields = read_json(checkpoint.parent / "config.json")
    scale_fields = fields if "z_channels" in fields else {}
    weights = {name: tensor for name, tensor in tensors_by_name.items() if name.startswith(PARTS)}
    config = infer_config(checkpoint, weights)
    if not scale_fields and not config["use_post_quant_conv"]:  # kl16 has one, NextStep's does not
        raise WeightsError(f"{checkpoint} needs the config.json published with it, for its scale; put it beside.")
    model: Any = AutoencoderKL(
        **config, scaling_factor=scale_fields.get("scaling_factor", MAR_SCALING_FACTOR),
        shift_factor=scale_fields.get("shift_factor", 0.0),
    )  # fmt: skip
    levels = len(model.config.block_out_channels)
    renamed = {to_diffusers_name(name, levels): conv_to_linear(name, tensor) for name, tensor in weights.items()}
    if mismatches := mismatched_tensors(model.state_dict(), renamed):
        raise WeightsError(
            f"{len(mismatches)} tensors of {checkpoint} do not fit an autoencoder, the first is {mismatches[0]}; "
            f"download it again from {SOURCE}."
        )
    model.load_state_dict(renamed)
    write_folder(out, lambda folder: model.save_pretrained(folder))
    return model


def to_diffusers_name(name: str, levels: int) -> str:
    """Return diffusers' name of a tensor; its decoder counts levels from the smallest resolution."""
    name = name.replace("encoder.down.", "encoder.down_blocks.")
    name = re.sub(r"decoder\.up\.(\d+)\.", lambda match: f"decoder.up_blocks.{levels - 1 - int(match[1])}.", name)
    for pattern, replacement in DIFFUSERS_RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


def conv_to_linear(name: str, tensor: Tensor) -> Tensor:
    """Return attention projections, which are 1x1 convolutions, as matrices."""
    return tensor[:, :, 0, 0] if ".attn" in name and tensor.ndim == 4 else tensor


def infer_config(checkpoint: Path, weights: dict[str, Tensor]) -> dict[str, Any]:
    """Infer the configuration of diffusers' AutoencoderKL from names and shapes of tensors."""
    try:
        levels = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.down."))
        widths = [weights[f"encoder.down.{level}.block.0.conv1.weight"].shape[0] for level in range(levels)]
        blocks = 1 + max(int(name.split(".")[4]) for name in weights if name.startswith("encoder.down.0.block."))
        latent, pixels_in = (weights[f"{half}.conv_in.weight"].shape[1] for half in ("decoder", "encoder"))
        pixels_out = weights["decoder.conv_out.weight"].shape[0]
    except (KeyError, ValueError, IndexError) as error:
        raise WeightsError(f"{checkpoint} holds no autoencoder; download one from {SOURCE}.") from error

    def block_types(half: str, order: range, plain: str) -> list[str]:
        has_attention = (any(name.startswith(f"{half}.{level}.attn.") for name in weights) for level in order)
        return [f"Attn{plain}" if attends else plain for attends in has_attention]

    return {
        "in_channels": pixels_in, "out_channels": pixels_out, "latent_channels": latent, "layers_per_block": blocks,
        "block_out_channels": widths, "norm_num_groups": 32,
        "down_block_types": block_types("encoder.down", range(levels), "DownEncoderBlock2D"),
        "up_block_types": block_types("decoder.up", range(levels)[::-1], "UpDecoderBlock2D"),
        "use_quant_conv": "quant_conv.weight" in weights, "use_post_quant_conv": "post_quant_conv.weight" in weights,
    }  # fmt: skip


def load_autoencoder(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """Load the autoencoder in `folder`, as `convert` writes it.

    Raises:
        WeightsError: it cannot be loaded.
    """

    refuse_pickles(folder)

    def load() -> Any:
        model: Any = read_model("autoencoder", AutoencoderKL, folder, dtype=dtype, low_cpu_mem_usage=False)
        model.to(device).eval().requires_grad_(False)
        return model

    return read_weights("autoencoder", folder, load)


def decode_latents(model: Any, latents: Tensor) -> Tensor:
    """Decode latents `[B, C, h, w]` to pixels `[B, 3, H, W]` in about -1 to 1, fp32."""
    scaled = latents.to(model.dtype) / model.config.scaling_factor + (model.config.shift_factor or 0)
    pixels: Tensor = model.decode(scaled).sample.float()
    return pixels
