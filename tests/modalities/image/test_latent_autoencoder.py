"""Images as latents: a latent sees only its cell, normalisation is inverted, diffusers loads the folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL

from polydraft.apps.lab.recipes.latent.autoencoder import NOISE, save
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder, build_autoencoder


@pytest.fixture
def codec() -> LatentAutoencoder:
    torch.manual_seed(0)
    codec = LatentAutoencoder(build_autoencoder(channels=3, widths=(8, 16), norm_groups=4)).eval()
    codec.mean, codec.deviation = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.5, 2.0, 1.0])
    return codec


@torch.no_grad()
def test_latent_depends_on_its_cell_alone(codec: LatentAutoencoder) -> None:
    pixels = torch.rand(1, 3, 64, 64) * 2 - 1
    changed = pixels.clone()
    changed[..., 16:24, 40:48] *= -1
    moved = (codec.encode(pixels) != codec.encode(changed)).any(-1)[0]
    assert moved.nonzero().tolist() == [[2, 5]]


@torch.no_grad()
def test_the_same_cell_has_the_same_latent_anywhere(codec: LatentAutoencoder) -> None:
    pixels = torch.rand(1, 3, 8, 8).repeat(1, 1, 4, 2)
    latents = codec.encode(pixels)
    assert latents.shape == (1, 4, 2, 3)
    assert torch.allclose(latents, latents[:, :1, :1].expand_as(latents), atol=1e-6)


@torch.no_grad()
def test_normalising_undoes_itself(codec: LatentAutoencoder) -> None:
    """The decoder reads the encoder's raw output."""
    handed = []
    codec.vae.decoder.register_forward_pre_hook(lambda _, inputs: handed.append(inputs[0]))
    pixels = torch.rand(2, 3, 16, 8) * 2 - 1
    codec.decode(codec.encode(pixels))
    cells = torch.stack([pixels[..., :8, :], pixels[..., 8:, :]], 1).flatten(0, 1)
    assert torch.allclose(handed[0].permute(0, 2, 3, 1).reshape(4, 3), codec.encode_cells(cells), atol=1e-5)


@torch.no_grad()
def test_diffusers_loads_folder_and_token_noise(codec: LatentAutoencoder, tmp_path: Path) -> None:
    save(codec, tmp_path)
    vae = AutoencoderKL.from_pretrained(tmp_path)
    assert vae.config["latents_mean"] == pytest.approx(codec.mean.tolist())
    folded = torch.nn.functional.pixel_unshuffle(torch.rand(5, 3, 8, 8), 4)
    deviation = vae.encode(folded).latent_dist.std[:, :, 0, 0]
    assert torch.allclose(deviation, NOISE * codec.deviation.expand(5, -1), rtol=0.02)
    again = LatentAutoencoder.from_folder(tmp_path).float()
    pixels = torch.rand(1, 3, 8, 8)
    assert torch.allclose(again.encode(pixels), codec.encode(pixels), atol=0.1)
