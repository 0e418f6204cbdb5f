"""Last stages of `tiny-latent`: the head is trained on fixed states, and the decoder on latents sampled by the target.

    python -m polydraft.apps.lab.recipes.latent.final_stages head --runs runs/tiny-latent --minutes 8
    python -m polydraft.apps.lab.recipes.latent.final_stages decoder --runs runs/tiny-latent --minutes 12

In joint training the states change under the head; here the head is trained alone (`stages.fit_head`).

So far the decoder has seen latents of scenes with the noise of tokens. Latents sampled by the target are further off,
and their errors are not noise: the target mixes similar objects, and later latents repeat the error and add to it. Here
it samples known scenes, every latent after those of the scene (`sample_near_scene`), then again after its own
samples, as far from the scene as its images are; the decoder, which sees all latents at once, is trained to restore the
scene. Half of a batch are latents of scenes, so that it does not forget these. The encoder is fixed, and so the target
stays valid.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydraft.apps.lab.recipes.latent.autoencoder import ROWS, fit_decoder
from polydraft.apps.lab.recipes.latent.data import GlyphLatents, LatentBatches
from polydraft.apps.lab.recipes.latent.model import LatentModel, add_token_noise, compute_features
from polydraft.apps.lab.recipes.latent.scheduled_sampling import sample_near_scene
from polydraft.apps.lab.recipes.latent.stages import fit_head
from polydraft.apps.lab.training import checkpoint
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.world.scene import GRID_SIDE, Scene

PACKED = 0.5  # share of packed scenes
RATE = 7e-4  # the decoder has converged once
ROUNDS = 5  # how often a scene is sampled: errors grow every time
SHARE = 0.3  # largest share of the minutes for sampling
MOST = 4000  # sampled scenes


@torch.no_grad()
def sample_latents(model: LatentModel, data: LatentBatches, seconds: float) -> tuple[Tensor, list[Scene]]:
    """Sample latents [N, SIDE, SIDE, C] for scenes of `data`; return them and the scenes."""
    latents: list[Tensor] = []
    scenes: list[Scene] = []
    start_time = time.monotonic()
    while not scenes or (len(scenes) < MOST and time.monotonic() - start_time < seconds):
        batch = data.next_batch(ROWS, PACKED)
        tokens = add_token_noise(model.head, batch)
        for _ in range(ROUNDS):
            tokens = sample_near_scene(model.head, batch, compute_features(model, batch, tokens))
            latents.append(tokens.unflatten(1, (GRID_SIDE, GRID_SIDE)))
            scenes += batch.scenes
        if len(scenes) % 400 < ROUNDS * ROWS:
            print(f"{len(scenes)} scenes drawn in {time.monotonic() - start_time:.0f}s", flush=True)
    return torch.cat(latents), scenes


def finish_head(runs: Path, minutes: float, seed: int = 0) -> None:
    """Train `runs/head` on hidden states of `runs/target` for scenes and for samples near them."""
    torch.manual_seed(seed)
    glyphs = GlyphLatents(LatentAutoencoder.from_folder(runs / "vae").float())
    model = LatentModel.from_folders(runs / "target", runs / "head")
    fit_head(model, LatentBatches(glyphs, seed + 5), minutes * 60, rounds=2, packed=0.0)
    checkpoint.save(model.head, runs / "head")


def finish_decoder(runs: Path, minutes: float, seed: int = 0) -> None:
    """Train the decoder in `runs/vae` on latents sampled by `runs/target` and `runs/head`."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    codec = LatentAutoencoder.from_folder(runs / "vae").float()
    glyphs = GlyphLatents(codec)
    model = LatentModel.from_folders(runs / "target", runs / "head").eval()
    latents, scenes = sample_latents(model, LatentBatches(glyphs, seed + 3), minutes * 60 * SHARE)

    def sample_batch(_: int) -> tuple[Tensor, list[Scene]]:
        rows = rng.integers(len(scenes), size=ROWS)
        shown, tokens = [scenes[row] for row in rows], latents[torch.from_numpy(rows)]
        clean = glyphs.encode_scenes(shown[: ROWS // 2])
        return torch.cat([clean + model.head.noise * torch.randn(clean.shape), tokens[ROWS // 2 :]]), shown

    fit_decoder(codec, runs / "vae", sample_batch, minutes * (1 - SHARE), RATE)


STAGES = {"head": finish_head, "decoder": finish_decoder}

if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments: dict[str, Any] = vars(parser.parse_args())
    STAGES[arguments.pop("stage")](**arguments)
