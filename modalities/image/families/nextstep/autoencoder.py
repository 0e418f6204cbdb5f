"""Decoder of NextStep's tokens: an autoencoder like Flux's, in diffusers' form.

    autoencoder = NextStepAutoencoder.from_folder(folder, config, device, dtype)
    pixels = autoencoder.decode(tokens, (32, 32))

The published one is a pickle; `polydraft convert autoencoder` converts it.
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any, Self

import torch
from torch import Tensor, nn

from polydraft.core.errors import WeightsError
from polydraft.modalities.image.families.autoencoder import decode_latents, load_autoencoder
from polydraft.modalities.image.families.nextstep.card import AUTOENCODER, PICKLE
from polydraft.modalities.image.families.nextstep.config import NextStepConfig
from polydraft.modalities.image.families.patches import unpatchify

FILE = "diffusion_pytorch_model.safetensors"


class NextStepAutoencoder(nn.Module):
    """diffusers' `AutoencoderKL`, for tokens that are patches of latents."""

    def __init__(self, vae: Any, patch: int) -> None:
        super().__init__()
        self.vae: Any
        self.patch: int
        self.vae, self.patch = vae, patch  # patch: latents per side of a token
        self.side: int = patch * 2 ** (len(vae.config["block_out_channels"]) - 1)

    @classmethod
    def from_folder(cls, folder: Path, config: NextStepConfig, device: torch.device, dtype: torch.dtype) -> Self:
        """Load the decoder of a NextStep with this configuration.

        Raises:
            WeightsError: the folder holds none, or one with another number of channels.
        """
        if not (folder / FILE).is_file():
            raise WeightsError(missing_weights_message(folder))
        vae = load_autoencoder(folder, device, dtype)
        if vae.config["latent_channels"] != config.channels:
            raise WeightsError(
                f"the autoencoder in {folder} has {vae.config['latent_channels']} channels and this NextStep generates "
                f"{config.channels}; use the one of {AUTOENCODER}."
            )
        return cls(vae, config.patch)

    def decode(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Decode tokens `[n, h · w, C · p · p]` of a grid (h, w) to pixels `[n, 3, H, W]` fp32, not clamped."""
        return decode_latents(self.vae, unpatchify(tokens.float(), grid, self.patch))


def missing_weights_message(folder: Path) -> str:
    """Return the error message of a folder without an autoencoder in diffusers' form."""
    if not (folder / PICKLE).is_file():
        return (
            f"{folder} holds no {FILE}; download {AUTOENCODER}, run `polydraft convert autoencoder` on its {PICKLE}, "
            "and give the folder it makes as codec."
        )
    return (
        f"the autoencoder in {folder} is a pickle; run `polydraft convert autoencoder {quote(str(folder / PICKLE))} "
        "--out FOLDER` and give codec=FOLDER."
    )
