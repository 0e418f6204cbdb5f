"""NextStep's tokens to pixels: an autoencoder of Flux's kind, in the form diffusers saves it.

    autoencoder = NextStepAutoencoder.from_folder(folder, config)
    pixels = autoencoder.decode(tokens, (32, 32))

The published one is a pickle; `polydraft convert autoencoder` brings it into this form.
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any, Self

import torch
from torch import Tensor, nn

from polydraft.core.errors import WeightsError
from polydraft.modalities.image.families.autoencoder import load, pixels
from polydraft.modalities.image.families.nextstep.config import AUTOENCODER, PICKLE, NextStepConfig
from polydraft.modalities.image.families.patches import unpatchify

FILE = "diffusion_pytorch_model.safetensors"


class NextStepAutoencoder(nn.Module):
    """vae: an `AutoencoderKL`. patch: a token is a square of patch by patch latents. side: pixels a side of a token."""

    def __init__(self, vae: Any, patch: int) -> None:
        super().__init__()
        self.vae, self.patch = vae, patch
        self.side: int = patch * 2 ** (len(vae.config["block_out_channels"]) - 1)

    @classmethod
    def from_folder(cls, folder: Path, config: NextStepConfig, device: torch.device, dtype: torch.dtype) -> Self:
        """The decoder of a NextStep of this configuration. Raises WeightsError."""
        if not (folder / FILE).is_file():
            raise WeightsError(without(folder))
        vae = load(folder, device, dtype)
        if vae.config["latent_channels"] != config.channels:
            raise WeightsError(
                f"the autoencoder in {folder} has {vae.config['latent_channels']} channels and this NextStep draws "
                f"{config.channels}; use the one of {AUTOENCODER}."
            )
        return cls(vae, config.patch)

    def decode(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Pixels `[n, 3, H, W]` fp32, not clamped, of tokens `[n, h · w, C · p · p]` of a grid (h, w)."""
        return pixels(self.vae, unpatchify(tokens.float(), grid, self.patch))


def without(folder: Path) -> str:
    """What to do where a folder holds no autoencoder in diffusers' form."""
    if not (folder / PICKLE).is_file():
        return (
            f"{folder} holds no {FILE}; download {AUTOENCODER}, run `polydraft convert autoencoder` on its {PICKLE}, "
            "and give the folder it makes as codec."
        )
    return (
        f"the autoencoder in {folder} is a pickle; run `polydraft convert autoencoder {quote(str(folder / PICKLE))} "
        "--out FOLDER` and give codec=FOLDER."
    )
