"""Chameleon's VQGAN, which decodes codes to images and encodes images to codes.

    convert(Path("vqgan.ckpt"), Path("lumina/vqvae"))
    vqgan = load(Path("lumina/vqvae"), device, dtype)
    pixels = decode_codes(vqgan, codes)

A VQGAN (Esser et al. 2021, arXiv 2012.09841) as facebookresearch/chameleon has it, chameleon/inference/vqgan.py.
transformers' Chameleon holds only its encoder. Its `JanusVQVAE` is the same network except for attention at the lowest
resolution, the order in which the decoder counts its levels, and normalised codes, which are looked up otherwise here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from polydraft.core.errors import WeightsError
from polydraft.core.folders.weight_files import open_tensors
from polydraft.modalities.checkpoints import load_tensors, mismatched_tensors, write_folder
from polydraft.modalities.weight_paths import tensor_files
from polydraft.modalities.weights import read_weights

SOURCE = "github.com/facebookresearch/chameleon"
DECODER, ENCODER = ("decoder.", "post_quant_conv.", "quantize."), ("encoder.", "quant_conv.")
LM_PREFIX = "model.vqmodel."  # of its tensors in a language model's files
Weights = dict[str, Tensor]


def convert(checkpoint: Path, out: Path) -> Any:
    """Convert the VQGAN in `checkpoint` to the folder `out`, written completely or not at all.

    Returns:
        JanusVQVAE: the network, without weights.

    Raises:
        WeightsError: the file is no VQGAN of Chameleon.
        OutputUnwritable: `out` exists or cannot be made.
    """
    found = load_tensors(checkpoint, "state_dict", SOURCE, bare=True)
    weights = {name: tensor.contiguous() for name, tensor in found.items() if name.startswith(DECODER + ENCODER)}
    try:
        vqgan = build_on_meta(to_transformers_names(weights))
    except (KeyError, ValueError, IndexError) as error:
        reason = f" ({error})" if isinstance(error, VQGANMismatch) else ""
        raise WeightsError(
            f"{checkpoint} is no VQGAN of Chameleon{reason}; download it again from {SOURCE}."
        ) from error

    def fill(folder: Path) -> None:
        save_file(weights, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"model_type": "chameleon_vqgan"}) + "\n")

    write_folder(out, fill)
    return vqgan


def load(folder: Path, device: torch.device, dtype: torch.dtype, encoder: bool = False) -> Any:
    """Load the VQGAN whose weights are in `folder`, alone or among a language model's.

    Args:
        folder (Path): a folder of safetensors.
        device (torch.device): of the weights.
        dtype (torch.dtype): of the weights.
        encoder (bool): whether the encoder is loaded as well.

    Raises:
        WeightsError: it cannot be loaded.
    """

    def load_weights() -> Any:
        prefixes = DECODER + ENCODER if encoder else DECODER
        found: Weights = {}
        for name, file in tensor_files(folder).items():
            if (local_name := name.removeprefix(LM_PREFIX)).startswith(prefixes):
                with open_tensors(file) as opened:
                    found[local_name] = opened.get_tensor(name)
        vqgan = build_on_meta(weights := to_transformers_names(found))
        vqgan.load_state_dict(weights, assign=True)
        return vqgan.to(device, dtype).eval().requires_grad_(False)

    return read_weights("VQGAN", folder, load_weights)


class VQGANMismatch(ValueError):
    """Tensors of other shapes than a VQGAN's."""


def to_transformers_names(weights: Weights) -> Weights:
    """Rename tensors as transformers does, whose decoder counts levels from the lowest resolution.

    The order of a checkpoint follows from the highest resolution, which no level upsamples.
    """
    last = max((int(name.split(".")[2]) for name in weights if name.startswith("decoder.up.")), default=0)
    if "decoder.up.0.upsample.conv.weight" in weights:
        return weights
    level_pattern = re.compile(r"decoder\.up\.(\d+)\.")
    return {
        level_pattern.sub(lambda level: f"decoder.up.{last - int(level[1])}.", name): tensor
        for name, tensor in weights.items()
    }


def build_on_meta(weights: Weights) -> Any:
    """Build the network that these weights, under transformers' names, fit, on the meta device.

    Raises:
        VQGANMismatch: no network has tensors of these shapes.
        KeyError: a tensor is missing.
    """
    from transformers import JanusVQVAE, JanusVQVAEConfig

    if "decoder.conv_in.weight" not in weights:
        raise VQGANMismatch("it has no decoder")
    levels = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("decoder.up."))
    blocks = 1 + max(int(name.split(".")[4]) for name in weights if name.startswith("decoder.up.0.block."))
    widths = [weights[f"decoder.up.{level}.block.0.conv1.weight"].shape[0] for level in reversed(range(levels))]
    codes, embedding_dim = weights["quantize.embedding.weight"].shape
    config = JanusVQVAEConfig(
        embed_dim=embedding_dim, num_embeddings=codes, latent_channels=weights["decoder.conv_in.weight"].shape[1],
        base_channels=widths[0], channel_multiplier=[width // widths[0] for width in widths], num_res_blocks=blocks - 1,
        out_channels=weights["decoder.conv_out.weight"].shape[0],
    )  # fmt: skip
    with torch.device("meta"):
        vqgan: Any = JanusVQVAE(config)
    vqgan.decoder.up[0].attn = vqgan.encoder.down[-1].attn = nn.ModuleList()
    if "encoder.conv_in.weight" not in weights:
        vqgan.encoder = vqgan.quant_conv = nn.Identity()
    if mismatches := mismatched_tensors(vqgan.state_dict(), weights):
        raise VQGANMismatch(f"{len(mismatches)} tensors do not fit, the first is {mismatches[0]}")
    return vqgan


def pixels_per_code(vqgan: Any) -> int:
    """Return the pixels per side of a code."""
    return int(2 ** (vqgan.decoder.num_resolutions - 1))


def decode_codes(vqgan: Any, codes: Tensor) -> Tensor:
    """Decode codes `[n, rows, columns]` to pixels `[n, 3, H, W]` in about -1..1."""
    embeddings = vqgan.quantize.embedding(codes).permute(0, 3, 1, 2)
    pixels: Tensor = vqgan.decoder(vqgan.post_quant_conv(embeddings))
    return pixels


def encode_images(vqgan: Any, images: Tensor) -> Tensor:
    """Encode images `[n, 3, H, W]` in -1..1 to codes `[n, rows, columns]`, with a VQGAN that has its encoder."""
    latents = vqgan.quant_conv(vqgan.encoder(images.to(vqgan.dtype)))
    nearest: Tensor = vqgan.quantize(latents)[2]
    return nearest.view(len(latents), *latents.shape[2:])
