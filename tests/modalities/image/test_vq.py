"""VQ tokenizer: a code sees only its cell, and codes reconstruct the image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from polydraft.apps.lab.recipes.image.data import render_views
from polydraft.apps.lab.recipes.image.tokenizer import reconstruction_psnr
from polydraft.modalities.image.vq import VQConfig, VQTokenizer
from polydraft.modalities.model_card import load_card
from polydraft.modalities.world.scene import place_objects, random_composition


def test_latent_depends_on_its_cell_alone() -> None:
    torch.manual_seed(0)
    model = VQTokenizer(VQConfig(codebook_size=16, encoder_width=24, decoder_width=8, image_size=64)).eval()
    pixels = torch.rand(1, 3, 64, 64) * 2 - 1
    changed = pixels.clone()
    changed[..., 16:24, 40:48] *= -1
    with torch.no_grad():
        moved = (model.encode_latents(pixels) != model.encode_latents(changed)).any(-1)[0]
    assert moved.nonzero().tolist() == [[2, 5]]


@pytest.fixture(scope="module")
def embedded() -> VQTokenizer:
    return VQTokenizer.from_folder(Path(load_card("tiny-image").path) / "tokenizer")


def test_held_out_scenes_come_back(embedded: VQTokenizer) -> None:
    rng = np.random.default_rng(77)
    scenes = [place_objects(random_composition(rng, held_out=True), rng) for _ in range(20)]
    rendered, matted = render_views(scenes)
    with torch.no_grad():
        whole, boxes = reconstruction_psnr(rendered, embedded.decode(embedded.encode(matted)).clamp(-1, 1), scenes)
    assert whole > 28 and boxes > 24
