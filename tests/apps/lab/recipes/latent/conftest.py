"""An encoder that was never trained, and the latents of all glyphs by it."""

from __future__ import annotations

import pytest
import torch

from polydraft.apps.lab.recipes.latent.data import GlyphLatents
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder, build_autoencoder


@pytest.fixture(scope="module")
def codec() -> LatentAutoencoder:
    torch.manual_seed(0)
    codec = LatentAutoencoder(build_autoencoder(channels=3, widths=(8, 16), norm_groups=4)).eval()
    codec.deviation = torch.full((3,), 0.02)  # an untrained encoder hardly tells cells apart
    return codec


@pytest.fixture(scope="module")
def glyphs(codec: LatentAutoencoder) -> GlyphLatents:
    return GlyphLatents(codec)
