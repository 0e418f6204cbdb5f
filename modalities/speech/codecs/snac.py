"""SNAC (Siuzdak et al. 2024, arXiv 2410.14411): a codec of frames whose levels have different code rates.

The package `snac` (MIT, `pip install polydraft[snac]`) has the network. Its noise is keyed by position here, so that
the same codes give the same audio. It is published as a pickle, of which `polydraft convert snac` reads
the tensors once.
"""

from __future__ import annotations

import math
import shutil
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from polydraft.core.checks.extras import optional_import
from polydraft.core.errors import WeightsError
from polydraft.core.folders.json_files import read_settings
from polydraft.core.folders.networks import load_network
from polydraft.core.folders.sizes import CONFIG, check_layers
from polydraft.core.folders.weight_files import read_tensors
from polydraft.core.sampling.noise import uniform_from_keys
from polydraft.modalities.checkpoints import load_tensors, write_folder
from polydraft.modalities.speech.codecs.chunks import DecodeWindow
from polydraft.modalities.weights import read_weights

FILE, PICKLE = "model.safetensors", "pytorch_model.bin"  # converted checkpoint, and published checkpoint
SOURCE = "huggingface.co/hubertsiuzdak/snac_24khz"
RECEPTIVE_RADIUS = 39  # samples that three residual units of kernel 7 and dilations 1, 3, 9 see to either side


class PositionKeyedNoise(nn.Module):
    """Noise block of the decoder, with noise that depends on the position in the stream only."""

    start = 0  # latents before this window

    def __init__(self, linear: nn.Module, rate: int) -> None:
        super().__init__()
        self.linear: nn.Module
        self.rate: int
        self.linear, self.rate = linear, rate  # samples per latent

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[-1], device=x.device) + self.start * self.rate
        layer = torch.tensor(self.rate, device=x.device)
        radius = (-2 * uniform_from_keys(layer, positions, torch.zeros_like(positions)).log()).sqrt()
        normal = radius * (2 * math.pi * uniform_from_keys(layer, positions, torch.ones_like(positions))).cos()
        out: Tensor = x + normal.to(x.dtype) * self.linear(x)
        return out


class Snac:
    """SNAC decoder with its weights; a level has `strides[0] / strides[level]` codes per frame."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.model: Any = read_weights("codec", folder, lambda: load_snac(folder)).to(device)
        self.device: torch.device = device
        self.strides: list[Any] = list(self.model.vq_strides)
        self.samples_per_latent: int = int(self.model.hop_length)
        self.latents_per_frame: int = int(self.strides[0])
        self.noises: list[PositionKeyedNoise] = replace_noise_blocks(self.model, self.rates)

    @property
    def rates(self) -> list[int]:
        """Return the samples per latent after every block of the decoder."""
        steps = [block.block[1].stride[0] for block in self.model.decoder.model if hasattr(block, "block")]
        return [math.prod(steps[: index + 1]) for index in range(len(steps))]

    @property
    def window(self) -> DecodeWindow:
        """Return the decoder's receptive field, in frames."""
        latents, before = 3.0, 1
        for rate in self.rates:
            latents, before = latents + 1 / before + RECEPTIVE_RADIUS / rate, rate
        context = math.ceil((latents + 3 / before) / self.latents_per_frame)
        return DecodeWindow(self.samples_per_latent * self.latents_per_frame, context, context)

    @torch.inference_mode()
    def decode(self, levels: list[Tensor], first: int) -> Tensor:
        """Return the audio `[S]` of frames whose levels are `[T · count]`, from frame `first` on."""
        for noise in self.noises:
            noise.start = first * self.latents_per_frame
        audio: Tensor = self.model.decode([level[None].to(self.device) for level in levels])
        return audio[0, 0].float().cpu()


def load_snac(folder: Path) -> Any:
    """Return the network in `folder`, which holds config.json and model.safetensors.

    Raises:
        WeightsError: it holds another codec, or a pickle.
    """
    if not (folder / FILE).is_file() and (folder / PICKLE).is_file():
        raise WeightsError(
            f"the codec in {folder} is a pickle, which is never opened; run `polydraft convert snac "
            f"{quote(str(folder / PICKLE))} --out FOLDER`, and give codec=FOLDER (--codec FOLDER)."
        )
    return build_network(folder, read_tensors(folder / FILE))


def build_network(folder: Path, weights: dict[str, Tensor]) -> Any:
    """Return the network that config.json in `folder` describes, with these weights."""
    with optional_import("this model's codec"):
        from snac import SNAC
    check_layers(folder)
    config = read_settings(folder / CONFIG)
    if config.get("attn_window_size") is not None:
        raise WeightsError(f"the codec in {folder} is another SNAC; take the one of 24 kHz.")
    return load_network(partial(SNAC, **config), weights, folder / FILE).eval()


def convert(checkpoint: Path, out: Path) -> Any:
    """Convert a published checkpoint, which has config.json beside it, to a folder, and return the network.

    Raises:
        WeightsError: it holds more than tensors, or another network.
        OutputUnwritable: `out` cannot be made.
    """
    weights = load_tensors(checkpoint, "state_dict", SOURCE, bare=True)
    network = read_weights("codec", checkpoint.parent, lambda: build_network(checkpoint.parent, weights))

    def fill(folder: Path) -> None:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / FILE)
        shutil.copyfile(checkpoint.parent / "config.json", folder / "config.json")

    write_folder(out, fill)
    return network


def replace_noise_blocks(model: Any, rates: list[int]) -> list[PositionKeyedNoise]:
    """Replace the decoder's noise blocks by blocks whose noise is keyed by position."""
    from snac.layers import NoiseBlock

    replaced = []
    blocks = [block.block for block in model.decoder.model if hasattr(block, "block")]
    for layers, rate in zip(blocks, rates, strict=True):
        for index, layer in enumerate(layers):
            if isinstance(layer, NoiseBlock):
                layers[index] = PositionKeyedNoise(layer.linear, rate)
                replaced.append(layers[index])
    return replaced
