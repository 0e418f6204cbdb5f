"""Small VQ image tokenizer: 128x128 pixels to 16x16 codes and back.

A code depends only on the 8x8 pixels of its own cell, so a glyph on the grid has the same codes wherever it stands and
whatever stands beside it, which makes them predictable. The decoder has a wider receptive field, so that codes of an
object's edge need not encode the background behind it (`world/painting/matte.py`). Codes are looked up by direction
(L2-normalised, Yu et al. 2022, "Vector-quantized Image Modeling with Improved VQGAN", section 3.2).

Sand and blades of grass are noise that no code can carry. A decoder with `grain` is given noise to make them of, as
video codecs do with film grain (Norkin and Birkbeck 2018, "Film grain synthesis for AV1 video codec"): random during
training, one fixed field at inference, so that the same codes always give the same image.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.folders.networks import read_network

NOISE_INIT_STD = 0.1  # of the weights of the noise; at zero they have no gradient on average, and learn nothing


@dataclass(frozen=True)
class VQConfig:
    """Shape of the tokenizer; `image_size` pixels are `image_size // 8` codes per side."""

    codebook_size: int = 2048
    code_dim: int = 8
    encoder_width: int = 512
    decoder_width: int = 256
    decoder_blocks: int = 3
    patch: int = 4
    image_size: int = 128
    grain: int = 0  # channels of noise
    model_type: str = "polydraft-vq"

    @property
    def grid(self) -> int:
        """Return the number of codes per side."""
        return self.image_size // (2 * self.patch)


class ChannelNorm(nn.Module):
    """RMS norm over channels at every pixel; no statistics travel across the image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight: nn.Parameter = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().square().mean(1, keepdim=True) + 1e-6).to(x.dtype)
        return x * scale * self.weight[:, None, None].to(x.dtype)


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Build a 3x3 convolution with replicated borders."""
    return nn.Conv2d(inputs, outputs, 3, stride, 1, padding_mode="replicate")


class ResBlock(nn.Module):
    """Residual block of 3x3 convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm: ChannelNorm = ChannelNorm(width)
        self.first: nn.Conv2d = conv3x3(width, width)
        self.second: nn.Conv2d = conv3x3(width, width)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(self.norm(x))))


class CellBlock(nn.Module):
    """Residual block that never looks beyond its own cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm: ChannelNorm = ChannelNorm(width)
        self.first: nn.Conv2d = nn.Conv2d(width, width, 1)
        self.second: nn.Conv2d = nn.Conv2d(width, width, 1)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(self.norm(x))))


class Grain(nn.Module):
    """Layer that adds noise to features `[B, width, side, side]`; later blocks shape it."""

    field: Tensor

    def __init__(self, channels: int, width: int, side: int) -> None:
        super().__init__()
        self.mix: nn.Conv2d = nn.Conv2d(channels, width, 1, bias=False)
        nn.init.normal_(self.mix.weight, std=NOISE_INIT_STD)
        self.register_buffer("field", torch.randn(1, channels, side, side, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(len(x), *self.field.shape[1:]) if self.training else self.field
        mixed: Tensor = self.mix(noise.to(x.dtype))
        return x + mixed


class VQTokenizer(nn.Module):
    """Encoder, codebook and decoder; pixels are `[B, 3, H, W]` in -1..1, codes `[B, H/8, W/8]`."""

    codebook: Tensor

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.config = config
        wide, channels = config.decoder_width, 3 * config.patch**2
        self.encoder: nn.Sequential = nn.Sequential(
            nn.PixelUnshuffle(2 * config.patch), nn.Conv2d(4 * channels, config.encoder_width, 1),
            CellBlock(config.encoder_width), CellBlock(config.encoder_width), ChannelNorm(config.encoder_width),
            nn.Conv2d(config.encoder_width, config.code_dim, 1),
        )  # fmt: skip
        self.decoder: nn.Sequential = nn.Sequential(
            conv3x3(config.code_dim, wide), *(ResBlock(wide) for _ in range(config.decoder_blocks)),
            ChannelNorm(wide), nn.Conv2d(wide, 2 * wide, 1), nn.PixelShuffle(2),
            *([Grain(config.grain, wide // 2, 2 * config.grid)] if config.grain else []),
            ResBlock(wide // 2), ResBlock(wide // 2), ChannelNorm(wide // 2),
            conv3x3(wide // 2, channels), nn.PixelShuffle(config.patch),
        )  # fmt: skip
        self.register_buffer("codebook", F.normalize(torch.randn(config.codebook_size, config.code_dim), dim=-1))

    @staticmethod
    def from_folder(folder: Path) -> VQTokenizer:
        """Load the tokenizer saved in `folder` (config.json, model.safetensors)."""
        return read_network(VQConfig, VQTokenizer, folder)

    @property
    def last_decoder_weight(self) -> Tensor:
        """Return the weights of the decoder's last layer, at which the gradients of all its losses are compared."""
        weight: Tensor = self.decoder[-2].weight  # type: ignore[assignment]  # a module's parameter
        return weight

    def encode_latents(self, pixels: Tensor) -> Tensor:
        """Encode pixels to unit latents `[B, H/8, W/8, C]`, before quantisation."""
        return F.normalize(self.encoder(pixels).permute(0, 2, 3, 1).float(), dim=-1)

    def quantise(self, latents: Tensor) -> Tensor:
        """Return the nearest code of every latent, `[...]` int64; nearest in angle, as both sides are unit vectors."""
        codes = self.codebook.float().T
        parts = latents.flatten(0, -2).split(512)  # all similarities at once would not fit the CPU's cache
        return torch.cat([(part @ codes).argmax(-1) for part in parts]).view(latents.shape[:-1])

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode pixels to codes."""
        return self.quantise(self.encode_latents(pixels))

    def decode(self, codes: Tensor) -> Tensor:
        """Decode codes to pixels."""
        return self.decode_latents(self.codebook[codes])

    def decode_latents(self, latents: Tensor) -> Tensor:
        """Decode latents `[B, H/8, W/8, C]` to pixels."""
        return self.decoder(latents.permute(0, 3, 1, 2).to(self.codebook.dtype))


def channels_last(model: VQTokenizer) -> VQTokenizer:
    """Return the model with weights laid out for fast CPU convolutions."""
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
