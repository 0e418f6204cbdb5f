"""Chameleon's VQGAN, which makes pictures of codes and codes of pictures.

    convert(Path("vqgan.ckpt"), Path("lumina/vqvae"))
    made = load(Path("lumina/vqvae"), device, dtype)
    pictures = pixels(made, codes)

A VQGAN (Esser et al. 2021, arXiv 2012.09841) as facebookresearch/chameleon has it, chameleon/inference/vqgan.py.
transformers' Chameleon holds its encoder alone. Its `JanusVQVAE` is the same network but for attention at the smallest
pictures, the order in which the decoder counts its levels, and codes of length one, which are looked up otherwise here.
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
from polydraft.modalities.checkpoints import misfits, tensors, write
from polydraft.modalities.hub import stored
from polydraft.modalities.loading import read_weights

SOURCE = "github.com/facebookresearch/chameleon"
DECODER, ENCODER = ("decoder.", "post_quant_conv.", "quantize."), ("encoder.", "quant_conv.")
WITHIN = "model.vqmodel."  # where a language model's files hold it
Weights = dict[str, Tensor]


def convert(checkpoint: Path, out: Path) -> Any:
    """Write the VQGAN of `checkpoint` to the folder `out`, whole or not at all; the network, without weights.

    Raises WeightsError for a file that is none, OutputUnwritable where `out` is already there or cannot be made.
    """
    found = tensors(checkpoint, "state_dict", SOURCE, bare=True)
    kept = {name: tensor.contiguous() for name, tensor in found.items() if name.startswith(DECODER + ENCODER)}
    try:
        made = fitting(renamed(kept))
    except (KeyError, ValueError, IndexError) as error:
        reason = f" ({error})" if isinstance(error, Misfit) else ""
        raise WeightsError(
            f"{checkpoint} is no VQGAN of Chameleon{reason}; download it again from {SOURCE}."
        ) from error

    def fill(folder: Path) -> None:
        save_file(kept, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"model_type": "chameleon_vqgan"}) + "\n")

    write(out, fill)
    return made


def load(folder: Path, device: torch.device, dtype: torch.dtype, encoder: bool = False) -> Any:
    """The `JanusVQVAE` whose weights are in `folder`, alone or among a language model's; encoder: with that half.

    Raises WeightsError.
    """

    def read() -> Any:
        wanted = DECODER + ENCODER if encoder else DECODER
        found: Weights = {}
        for name, file in stored(folder).items():
            if (own := name.removeprefix(WITHIN)).startswith(wanted):
                with open_tensors(file) as opened:
                    found[own] = opened.get_tensor(name)
        made = fitting(weights := renamed(found))
        made.load_state_dict(weights, assign=True)
        return made.to(device, dtype).eval().requires_grad_(False)

    return read_weights("VQGAN", folder, read)


class Misfit(ValueError):
    """Tensors of other shapes than a VQGAN has."""


def renamed(weights: Weights) -> Weights:
    """The same under transformers' names: its decoder counts levels from the smallest pictures.

    Which way they are counted is told by the largest pictures, which no level makes larger.
    """
    last = max((int(name.split(".")[2]) for name in weights if name.startswith("decoder.up.")), default=0)
    if "decoder.up.0.upsample.conv.weight" in weights:
        return weights
    turn = re.compile(r"decoder\.up\.(\d+)\.")
    return {turn.sub(lambda level: f"decoder.up.{last - int(level[1])}.", name): of for name, of in weights.items()}


def fitting(weights: Weights) -> Any:
    """The network that these weights, under transformers' names, fit; on the meta device. Raises Misfit or KeyError."""
    from transformers import JanusVQVAE, JanusVQVAEConfig

    if "decoder.conv_in.weight" not in weights:
        raise Misfit("it has no decoder")
    levels = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("decoder.up."))
    blocks = 1 + max(int(name.split(".")[4]) for name in weights if name.startswith("decoder.up.0.block."))
    widths = [weights[f"decoder.up.{level}.block.0.conv1.weight"].shape[0] for level in reversed(range(levels))]
    codes, numbers = weights["quantize.embedding.weight"].shape
    config = JanusVQVAEConfig(
        embed_dim=numbers, num_embeddings=codes, latent_channels=weights["decoder.conv_in.weight"].shape[1],
        base_channels=widths[0], channel_multiplier=[width // widths[0] for width in widths], num_res_blocks=blocks - 1,
        out_channels=weights["decoder.conv_out.weight"].shape[0],
    )  # fmt: skip
    with torch.device("meta"):
        made: Any = JanusVQVAE(config)
    made.decoder.up[0].attn = made.encoder.down[-1].attn = nn.ModuleList()
    if "encoder.conv_in.weight" not in weights:
        made.encoder = made.quant_conv = nn.Identity()
    if wrong := misfits(made.state_dict(), weights):
        raise Misfit(f"{len(wrong)} tensors do not fit, the first is {wrong[0]}")
    return made


def side(made: Any) -> int:
    """Pixels a side of a code."""
    return int(2 ** (made.decoder.num_resolutions - 1))


def pixels(made: Any, codes: Tensor) -> Tensor:
    """`[n, 3, H, W]` in about -1..1 of codes `[n, rows, columns]`."""
    vectors = made.quantize.embedding(codes).permute(0, 3, 1, 2)
    drawn: Tensor = made.decoder(made.post_quant_conv(vectors))
    return drawn


def codes_of(made: Any, pictures: Tensor) -> Tensor:
    """Codes `[n, rows, columns]` of pictures `[n, 3, H, W]` in -1..1, of one loaded with its encoder."""
    latents = made.quant_conv(made.encoder(pictures.to(made.dtype)))
    nearest: Tensor = made.quantize(latents)[2]
    return nearest.view(len(latents), *latents.shape[2:])
