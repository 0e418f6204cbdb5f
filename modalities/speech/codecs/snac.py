"""SNAC (Siuzdak et al. 2024, arXiv 2410.14411): sound of frames whose levels run at rates of their own.

The package `snac` (MIT, `pip install polydraft[snac]`) holds the network; here its noise is tied to places, so that the
same codes make the same sound, and it is read without running what is stored.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from polydraft.core.errors import WeightsError
from polydraft.core.extras import optional
from polydraft.core.law.noise import uniform
from polydraft.modalities.loading import read_weights
from polydraft.modalities.speech.codecs.chunks import Window

REACH = 39  # samples that three residual units of kernel 7 and dilations 1, 3, 9 see to either side


class PlacedNoise(nn.Module):
    """The decoder's noise block, drawn from its place in the stream and not from when it is asked.

    rate: its samples a latent; start: latents before this window.
    """

    start = 0

    def __init__(self, linear: nn.Module, rate: int) -> None:
        super().__init__()
        self.linear, self.rate = linear, rate

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[-1], device=x.device) + self.start * self.rate
        layer = torch.tensor(self.rate, device=x.device)
        radius = (-2 * uniform(layer, places, torch.zeros_like(places)).log()).sqrt()
        normal = radius * (2 * math.pi * uniform(layer, places, torch.ones_like(places))).cos()
        out: Tensor = x + normal.to(x.dtype) * self.linear(x)
        return out


class Snac:
    """A decoder of frames; a level has `strides[0] / strides[level]` codes a frame."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.model = read_weights("codec", folder, lambda: read(folder)).to(device)
        self.device, self.strides = device, list(self.model.vq_strides)
        self.hop, self.latents = int(self.model.hop_length), int(self.strides[0])
        self.noises = quieten(self.model, self.rates)

    @property
    def rates(self) -> list[int]:
        """Samples a latent after every block of the decoder."""
        steps = [block.block[1].stride[0] for block in self.model.decoder.model if hasattr(block, "block")]
        return [math.prod(steps[: index + 1]) for index in range(len(steps))]

    @property
    def window(self) -> Window:
        """In frames: what the decoder sees to either side."""
        latents, before = 3.0, 1
        for rate in self.rates:
            latents, before = latents + 1 / before + REACH / rate, rate
        around = math.ceil((latents + 3 / before) / self.latents)
        return Window(self.hop * self.latents, around, around)

    @torch.inference_mode()
    def decode(self, levels: list[Tensor], first: int) -> Tensor:
        """Sound `[S]` of frames whose levels are `[T · count]`; first: the frame they begin at."""
        for noise in self.noises:
            noise.start = first * self.latents
        sound: Tensor = self.model.decode([level[None].to(self.device) for level in levels])
        return sound[0, 0].float().cpu()


def read(folder: Path) -> Any:
    """The network in `folder`; a .bin is read as tensors, and refused if it holds anything else."""
    with optional("this model's codec"):
        from snac import SNAC
    config = json.loads((folder / "config.json").read_text())
    if config.get("attn_window_size") is not None:
        raise WeightsError(f"the codec in {folder} is another SNAC; take the one of 24 kHz.")
    model = SNAC(**config)
    if (folder / "model.safetensors").is_file():
        model.load_state_dict(load_file(folder / "model.safetensors"))
    else:
        try:
            weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
        except UnpicklingError as error:
            raise ValueError("it holds more than tensors") from error
        model.load_state_dict(weights)
    return model.eval()


def quieten(model: Any, rates: list[int]) -> list[PlacedNoise]:
    """Put noise tied to places where the decoder draws its own."""
    from snac.layers import NoiseBlock

    placed = []
    blocks = [block.block for block in model.decoder.model if hasattr(block, "block")]
    for layers, rate in zip(blocks, rates, strict=True):
        for index, layer in enumerate(layers):
            if isinstance(layer, NoiseBlock):
                layers[index] = PlacedNoise(layer.linear, rate)
                placed.append(layers[index])
    return placed
