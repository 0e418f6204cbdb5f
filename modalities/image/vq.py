"""A small VQ image tokenizer: 128x128 pixels to 16x16 codes and back.

A code depends on the 8x8 pixels of its own cell and nothing else, so a glyph on the grid has the same codes wherever it
stands and whatever stands beside it: that is what makes them predictable. The decoder looks around, so that codes of a
thing's edge need not tell what is behind it (`world/painting/matte.py`). Codes are looked up by
direction (L2-normalised, Yu et al. 2022, "Vector-quantized Image Modeling with Improved VQGAN", section 3.2).

Sand and blades of grass are noise that no code can carry. A decoder with `grain` is given noise to make them of, as
video codecs do with the grain of films (Norkin and Birkbeck 2018, "Film grain synthesis for AV1 video codec"): random
while it learns, one fixed field when it is used, so that the same codes are always the same picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.folders.networks import read_network

BEGIN = 0.1  # deviation of the weights noise begins with; at zero they have no gradient on average, and learn nothing


@dataclass(frozen=True)
class VQConfig:
    """Shape of the tokenizer; `image_size` pixels are `image_size // 8` codes a side. grain: channels of noise."""

    codebook_size: int = 2048
    code_dim: int = 8
    encoder_width: int = 512
    decoder_width: int = 256
    decoder_blocks: int = 3
    patch: int = 4
    image_size: int = 128
    grain: int = 0
    model_type: str = "polydraft-vq"

    @property
    def grid(self) -> int:
        return self.image_size // (2 * self.patch)


class ChannelNorm(nn.Module):
    """RMS norm over channels at every pixel: no statistics travel across the picture."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().square().mean(1, keepdim=True) + 1e-6).to(x.dtype)
        return x * scale * self.weight[:, None, None].to(x.dtype)


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, padding_mode="replicate")


class ResBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.first, self.second = ChannelNorm(width), conv(width, width), conv(width, width)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(self.norm(x))))


class CellBlock(nn.Module):
    """A residual block that never looks beyond its own cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.first, self.second = ChannelNorm(width), nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(self.norm(x))))


class Grain(nn.Module):
    """Adds noise to features `[B, width, side, side]`; what becomes of it is up to the blocks behind it."""

    field: Tensor

    def __init__(self, channels: int, width: int, side: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, width, 1, bias=False)
        nn.init.normal_(self.mix.weight, std=BEGIN)
        self.register_buffer("field", torch.randn(1, channels, side, side, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(len(x), *self.field.shape[1:]) if self.training else self.field
        mixed: Tensor = self.mix(noise.to(x.dtype))
        return x + mixed


class VQTokenizer(nn.Module):
    """Encoder, codebook and decoder. Pixels are `[B, 3, H, W]` in -1..1, codes `[B, H/8, W/8]`."""

    codebook: Tensor

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.config = config
        wide, channels = config.decoder_width, 3 * config.patch**2
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(2 * config.patch), nn.Conv2d(4 * channels, config.encoder_width, 1),
            CellBlock(config.encoder_width), CellBlock(config.encoder_width), ChannelNorm(config.encoder_width),
            nn.Conv2d(config.encoder_width, config.code_dim, 1),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            conv(config.code_dim, wide), *(ResBlock(wide) for _ in range(config.decoder_blocks)),
            ChannelNorm(wide), nn.Conv2d(wide, 2 * wide, 1), nn.PixelShuffle(2),
            *([Grain(config.grain, wide // 2, 2 * config.grid)] if config.grain else []),
            ResBlock(wide // 2), ResBlock(wide // 2), ChannelNorm(wide // 2),
            conv(wide // 2, channels), nn.PixelShuffle(config.patch),
        )  # fmt: skip
        self.register_buffer("codebook", F.normalize(torch.randn(config.codebook_size, config.code_dim), dim=-1))

    @staticmethod
    def from_folder(folder: Path) -> VQTokenizer:
        """Return the tokenizer saved in `folder` (config.json, model.safetensors)."""
        return read_network(VQConfig, VQTokenizer, folder)

    @property
    def last(self) -> Tensor:
        """The last weights of the decoder, which all its losses meet in."""
        weight: Tensor = self.decoder[-2].weight  # type: ignore[assignment]  # a module's parameter
        return weight

    def latents(self, pixels: Tensor) -> Tensor:
        """Unit latents `[B, H/8, W/8, C]` before quantisation."""
        return F.normalize(self.encoder(pixels).permute(0, 2, 3, 1).float(), dim=-1)

    def quantise(self, latents: Tensor) -> Tensor:
        """The nearest code of every latent, `[...]` int64 (nearest in angle: both sides are unit vectors)."""
        codes = self.codebook.float().T
        parts = latents.flatten(0, -2).split(512)  # all similarities at once would not fit a processor's cache
        return torch.cat([(part @ codes).argmax(-1) for part in parts]).view(latents.shape[:-1])

    def encode(self, pixels: Tensor) -> Tensor:
        return self.quantise(self.latents(pixels))

    def decode(self, codes: Tensor) -> Tensor:
        return self.reconstruct(self.codebook[codes])

    def reconstruct(self, latents: Tensor) -> Tensor:
        return self.decoder(latents.permute(0, 3, 1, 2).to(self.codebook.dtype))


def channels_last(model: VQTokenizer) -> VQTokenizer:
    """The same model with weights laid out for fast CPU convolutions."""
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
