"""The last lessons of `tiny-latent`: the head on states that stay, the decoder on latents as the target draws them.

    python -m polydraft.apps.train.latent.finish head --runs runs/tiny-latent --minutes 8
    python -m polydraft.apps.train.latent.finish decoder --runs runs/tiny-latent --minutes 12

What backbone and head were taught together has kept moving under the head; now it learns alone (`stages.fit_head`).

The decoder, until now, has seen latents of scenes with the noise of tokens. What the target draws is further off, and
its errors are not noise: it hesitates between things that look alike, and what follows repeats the error and adds to
it. Here it draws scenes that are known, every latent after the ones of the scene (`rounds.drawn`), then again after its
own, as far from the scene as whole pictures of its own are; the decoder, which sees all latents at once, learns what
they should have shown. The latents of half a batch stay those of scenes, so that it does not forget how those look. The
encoder stays as it is, and with it what the target has learnt.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polydraft.apps.train import checkpoint
from polydraft.apps.train.latent.autoencoder import ROWS, learn_to_decode
from polydraft.apps.train.latent.data import GlyphLatents, LatentBatches
from polydraft.apps.train.latent.model import LatentModel, noised, understood
from polydraft.apps.train.latent.rounds import drawn
from polydraft.apps.train.latent.stages import fit_head
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.world.scene import SIDE, Scene

PACKED = 0.5  # share of packed scenes
RATE = 7e-4  # the decoder has converged once
ROUNDS = 5  # how often a scene is drawn: errors grow with every time
SHARE = 0.3  # of the minutes goes into drawing, at most
MOST = 4000  # scenes drawn


@torch.no_grad()
def draw_scenes(model: LatentModel, data: LatentBatches, seconds: float) -> tuple[Tensor, list[Scene]]:
    """Latents `[N, SIDE, SIDE, C]` that `model` draws for scenes of `data`, and the scenes."""
    latents: list[Tensor] = []
    scenes: list[Scene] = []
    begun = time.monotonic()
    while not scenes or (len(scenes) < MOST and time.monotonic() - begun < seconds):
        batch = data.next(ROWS, PACKED)
        tokens = noised(model.head, batch)
        for _ in range(ROUNDS):
            tokens = drawn(model.head, batch, understood(model, batch, tokens))
            latents.append(tokens.unflatten(1, (SIDE, SIDE)))
            scenes += batch.scenes
        if len(scenes) % 400 < ROUNDS * ROWS:
            print(f"{len(scenes)} scenes drawn in {time.monotonic() - begun:.0f}s", flush=True)
    return torch.cat(latents), scenes


def settle_head(runs: Path, minutes: float, seed: int = 0) -> None:
    """Train `runs/head` on what `runs/target` says of scenes, and of what both draw of them."""
    torch.manual_seed(seed)
    glyphs = GlyphLatents(LatentAutoencoder.from_folder(runs / "vae").float())
    model = LatentModel.from_folders(runs / "target", runs / "head")
    fit_head(model, LatentBatches(glyphs, seed + 5), minutes * 60, rounds=2, packed=0.0)
    checkpoint.save(model.head, runs / "head")


def settle_decoder(runs: Path, minutes: float, seed: int = 0) -> None:
    """Train the decoder in `runs/vae` on what `runs/target` and `runs/head` draw."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    codec = LatentAutoencoder.from_folder(runs / "vae").float()
    glyphs = GlyphLatents(codec)
    model = LatentModel.from_folders(runs / "target", runs / "head").eval()
    latents, scenes = draw_scenes(model, LatentBatches(glyphs, seed + 3), minutes * 60 * SHARE)

    def some(_: int) -> tuple[Tensor, list[Scene]]:
        rows = rng.integers(len(scenes), size=ROWS)
        shown, tokens = [scenes[row] for row in rows], latents[torch.from_numpy(rows)]
        clean = glyphs.of(shown[: ROWS // 2])
        return torch.cat([clean + model.head.noise * torch.randn(clean.shape), tokens[ROWS // 2 :]]), shown

    learn_to_decode(codec, runs / "vae", some, minutes * (1 - SHARE), RATE)


STAGES = {"head": settle_head, "decoder": settle_decoder}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = vars(parser.parse_args())
    STAGES[arguments.pop("stage")](**arguments)
