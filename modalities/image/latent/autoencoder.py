"""Autoencoder between images and normalised latents: diffusers' `AutoencoderKL`, encoding cell by cell.

    codec = LatentAutoencoder.from_folder(folder)
    pixels = codec.decode(codec.encode(pixels))

The image is folded to 48 channels at a quarter of its side (space to depth), which the autoencoder halves once, so a
latent stands for 8x8 pixels. The encoder is run on every cell alone, as a batch of 2x2 inputs: neither padding nor
statistics of its norms leave the cell, so an object on the grid has the same latents wherever it stands, which makes
them predictable. The decoder has a wider receptive field.

Latents are normalised to unit variance by `latents_mean` and `latents_std` of the configuration. Tokens are these
latents with noise of a fixed standard deviation (Sun et al. 2024, LatentLM, arXiv 2412.08635, section 3.2), which the
decoder has learnt to remove; the variance that the encoder outputs is that constant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from torch import Tensor, nn

from polydraft.core.folders.readers import read_model
from polydraft.modalities.weight_paths import refuse_pickles

FOLD = 4  # pixels per side that become channels
CELL = 2 * FOLD  # pixels per side of a latent's cell


def build_autoencoder(channels: int = 6, widths: tuple[int, int] = (96, 128), norm_groups: int = 8) -> AutoencoderKL:
    """Build an untrained autoencoder of the form that is read here; `channels` is the size of a latent."""
    return AutoencoderKL(
        in_channels=3 * FOLD**2, out_channels=3 * FOLD**2, latent_channels=channels, block_out_channels=widths,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, layers_per_block=1,
        norm_num_groups=norm_groups, mid_block_add_attention=False, use_quant_conv=False, use_post_quant_conv=False,
        latents_mean=[0.0] * channels, latents_std=[1.0] * channels,
    )  # fmt: skip


class LatentAutoencoder(nn.Module):
    """Pixels `[B, 3, H, W]` in -1..1 to latents `[B, H/8, W/8, C]` of zero mean and unit variance per channel."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, vae: Any) -> None:  # an `AutoencoderKL`, whose attributes come from its configuration
        super().__init__()
        self.vae = vae
        self.size: int = self.vae.config["latent_channels"]
        self.register_buffer("mean", torch.tensor(self.vae.config["latents_mean"]), persistent=False)
        self.register_buffer("deviation", torch.tensor(self.vae.config["latents_std"]), persistent=False)

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Load the autoencoder that diffusers saved in `folder`, in bf16, as it ships."""
        refuse_pickles(folder)
        vae = read_model("autoencoder", AutoencoderKL, folder, dtype=torch.bfloat16, low_cpu_mem_usage=False)
        return cls(vae.eval())

    def encode_cells(self, cells: Tensor) -> Tensor:
        """Encode single cells `[N, 3, 8, 8]` to `[N, C]`, not normalised."""
        folded = F.pixel_unshuffle(cells.to(self.vae.dtype), FOLD)
        return self.vae.encoder(folded)[:, : self.size, 0, 0].float()

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode pixels to normalised latents, fp32, without noise."""
        batch, _, height, width = pixels.shape
        cells = pixels.unfold(2, CELL, CELL).unfold(3, CELL, CELL).permute(0, 2, 3, 1, 4, 5)
        latents = (self.encode_cells(cells.reshape(-1, 3, CELL, CELL)) - self.mean) / self.deviation
        return latents.view(batch, height // CELL, width // CELL, self.size)

    def decode(self, latents: Tensor) -> Tensor:
        """Decode latents to pixels, fp32, not clamped."""
        raw = (latents.float() * self.deviation + self.mean).permute(0, 3, 1, 2)
        return F.pixel_shuffle(self.vae.decode(raw.to(self.vae.dtype)).sample, FOLD).float()
