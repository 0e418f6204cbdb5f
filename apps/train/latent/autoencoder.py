"""Train the autoencoder of `tiny-latent`: its encoder on single cells, then its decoder on scenes.

    python -m polydraft.apps.train.latent.autoencoder encoder --out runs/tiny-latent/vae --minutes 8
    python -m polydraft.apps.train.latent.autoencoder decoder --out runs/tiny-latent/vae --minutes 18
    python -m polydraft.apps.train.latent.finish decoder --runs runs/tiny-latent --minutes 12  # after the target

Both learn from latents with the noise that tokens have. The encoder sees single cells anyway, so a small network that
reads single cells stands in for the decoder, at a sixth of the time; running statistics of the latents keep their
variance at one, so it can't shout the noise down. Once it is done the target can be begun. The decoder then learns from
whole scenes, packed ones mostly, and things count more in them than what they stand on. Once the target is trained the
decoder learns on from what that draws (`finish.py`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from polydraft.apps.train.clock import Clock
from polydraft.apps.train.image.appearance import apart
from polydraft.apps.train.image.data import boxes, packed_scene, to_pixels
from polydraft.apps.train.latent.data import GlyphLatents
from polydraft.apps.train.optimise import annealed, apply, set_rate
from polydraft.core.model.precision import mixed
from polydraft.core.training.shipping import aside
from polydraft.modalities.image.latent.autoencoder import CELL, LatentAutoencoder, stock
from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.scene import BACKGROUNDS, Placed, Scene, place, random_composition

NOISE = 0.3  # in units of a normalised latent: more than tokens keep, as what is drawn is off by more
BEYOND = 3.0  # normalised latents are asked to stay within
ROWS, RATE = 8, 2e-3  # of the decoder
THINGS = 2.0  # what a pixel of a thing's box counts beside the background's 1


def loss_of(decoded: Tensor, pixels: Tensor, weight: Tensor) -> Tensor:
    """Absolute and squared error, and that of the steps between neighbours: edges stay edges."""
    error = decoded - pixels
    steps = error.diff(dim=-1).abs() * weight[..., 1:], error.diff(dim=-2).abs() * weight[..., 1:, :]
    return apart(decoded, pixels, weight) + 0.5 * (steps[0].mean() + steps[1].mean())


@torch.no_grad()
def psnr(codec: LatentAutoencoder, scenes: list[Scene], noise: float = NOISE, seed: int = 0) -> tuple[float, float]:
    """PSNR in dB of pictures drawn back from noisy latents: over whole pictures, and inside boxes of things."""
    generator = torch.Generator().manual_seed(seed)
    whole, inside = [], []
    for start in range(0, len(scenes), 10):
        part = scenes[start : start + 10]
        pixels = to_pixels([scene.render() for scene in part])
        latents = codec.encode(pixels)
        latents = latents + noise * torch.randn(latents.shape, generator=generator)
        error = ((codec.decode(latents).clamp(-1, 1) - pixels) / 2).square().mean(1)
        whole.append(error.mean())
        for scene, square in zip(part, error, strict=True):
            inside += [square[o.y : o.y + o.side, o.x : o.x + o.side].mean() for o in scene.objects]
    decibels = [-10 * math.log10(torch.stack(values).mean().item()) for values in (whole, inside)]
    return decibels[0], decibels[1]


def every_cell() -> Tensor:
    """All cells of all things on all backgrounds, `[N, 3, 8, 8]` in -1..1."""
    found = []
    for background in BACKGROUNDS:
        for size, side in SIZES.items():
            pixels = to_pixels(
                [Scene(background, (Placed(kind, size, 0, 0),)).render()[:side, :side] for kind in KINDS]
            )
            cells = pixels.unfold(2, CELL, CELL).unfold(3, CELL, CELL).permute(0, 2, 3, 1, 4, 5)
            found.append(cells.reshape(-1, 3, CELL, CELL))
    return torch.cat(found)


def save(codec: LatentAutoencoder, folder: Path) -> None:
    """As bf16, with what the encoder says of variances set to the noise that tokens have."""
    weights = {name: weight.detach().to(torch.bfloat16) for name, weight in codec.vae.state_dict().items()}
    weights["encoder.conv_out.weight"][codec.size :] = 0
    weights["encoder.conv_out.bias"][codec.size :] = 2 * (NOISE * codec.deviation).log()
    normal = {"latents_mean": codec.mean.tolist(), "latents_std": codec.deviation.tolist()}
    copy: Any = AutoencoderKL.from_config(codec.vae.config, **normal)
    copy.load_state_dict(weights, assign=True)
    copy.register_to_config(_name_or_path="")  # else the folder says where it was made
    with aside(folder) as made:
        copy.save_pretrained(made)


def train_encoder(out: Path, minutes: float, seed: int = 0, rows: int = 1024, rate: float = 2e-3) -> None:
    """The first stage; the decoder that it leaves in `out` has learnt nothing."""
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    codec = LatentAutoencoder(stock())
    codec.vae.to(memory_format=torch.channels_last)
    norm = nn.BatchNorm1d(codec.size, eps=1e-6, momentum=0.02, affine=False)
    reader = nn.Sequential(
        nn.Linear(codec.size, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(),
        nn.Linear(512, 3 * CELL**2), nn.Unflatten(1, (3, CELL, CELL)),
    )  # fmt: skip
    cells, weight = every_cell(), torch.ones(1, 1, CELL, CELL)
    optimiser = torch.optim.AdamW([*codec.vae.encoder.parameters(), *reader.parameters()], betas=(0.9, 0.95))
    clock, step = Clock(), 0
    while (spent := clock.spent() / (minutes * 60)) < 1:
        set_rate([optimiser], rate * annealed(spent, step))
        pixels = cells[torch.randint(len(cells), (rows,))]
        with mixed():
            latents = norm(codec.raw(pixels))
            decoded = reader(latents + NOISE * torch.randn(latents.shape)).float()
        beyond = (latents.abs() - BEYOND).clamp(min=0).square().mean()
        loss = loss_of(decoded, pixels, weight)
        (loss + 0.1 * beyond).backward()
        apply([optimiser], codec)
        step += 1
        if step % 100 == 0:
            decibels = -10 * math.log10(((decoded - pixels) / 2).square().mean().item())
            print(f"{spent * minutes:5.1f}m step {step} loss {loss.item():.4f} cells {decibels:.2f} dB", flush=True)
    found = norm.state_dict()
    codec.mean, codec.deviation = found["running_mean"].clone(), found["running_var"].sqrt()
    settle(codec)
    save(codec, out)


@torch.no_grad()
def settle(codec: LatentAutoencoder) -> None:
    """Weights of the encoder as they will be saved (bf16), and statistics over all latents that there are."""
    for weight in codec.vae.encoder.parameters():
        weight.copy_(weight.to(torch.bfloat16))
    distinct = GlyphLatents(codec).table
    codec.mean = codec.mean + codec.deviation * distinct.mean(0)
    codec.deviation = codec.deviation * distinct.std(0)


def train_decoder(out: Path, minutes: float, seed: int = 0) -> None:
    """The second stage: the decoder of `out`, on the latents of its encoder, computed once."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    codec = LatentAutoencoder.from_folder(out).float()
    glyphs = GlyphLatents(codec)

    def encoded(step: int) -> tuple[Tensor, list[Scene]]:
        plain = step % 4 == 3  # mostly background, which has to stay flat
        scenes = [place(random_composition(rng), rng) if plain else packed_scene(rng) for _ in range(ROWS)]
        latents = glyphs.of(scenes)
        return latents + NOISE * torch.randn(latents.shape), scenes

    learn_to_decode(codec, out, encoded, minutes, RATE)


def learn_to_decode(
    codec: LatentAutoencoder, out: Path, some: Callable[[int], tuple[Tensor, list[Scene]]], minutes: float, rate: float
) -> None:
    """Train the decoder of `codec` for `minutes`, and keep it in `out`.

    some: of a step, latents `[B, H/8, W/8, C]` as tokens are, and the scenes that they should show.
    """
    held_out = np.random.default_rng(10_000)
    validation = [place(random_composition(held_out, True), held_out) for _ in range(100)]
    codec.vae.to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(codec.vae.decoder.parameters(), betas=(0.9, 0.95), weight_decay=1e-4)
    clock, step = Clock(), 0
    while (spent := clock.spent() / (minutes * 60)) < 1:
        set_rate([optimiser], rate * annealed(spent, step))
        latents, scenes = some(step)
        pixels = to_pixels([scene.render() for scene in scenes])
        with mixed():
            decoded = codec.decode(latents)
        loss = loss_of(decoded, pixels, boxes(scenes, THINGS))
        loss.backward()
        apply([optimiser], codec)
        step += 1
        if step % 50 == 0:
            print(f"{spent * minutes:5.1f}m step {step} loss {loss.item():.4f}", flush=True)
        if step % 400 == 0:
            save(codec, out)
            whole, inside = psnr(codec, validation[:20])
            print(f"{spent * minutes:5.1f}m step {step} psnr {whole:.2f} in boxes {inside:.2f}", flush=True)
    save(codec, out)
    whole, inside = psnr(LatentAutoencoder.from_folder(out).float(), validation)
    print(f"final psnr {whole:.2f} in boxes {inside:.2f}", flush=True)


STAGES = {"encoder": train_encoder, "decoder": train_decoder}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    STAGES[args.stage](args.out, args.minutes, args.seed)
