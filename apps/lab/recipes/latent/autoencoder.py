"""Train the autoencoder of `tiny-latent`: its encoder on single cells, then its decoder on scenes.

    python -m polydraft.apps.lab.recipes.latent.autoencoder encoder --out runs/tiny-latent/vae --minutes 8
    python -m polydraft.apps.lab.recipes.latent.autoencoder decoder --out runs/tiny-latent/vae --minutes 18
    python -m polydraft.apps.lab.recipes.latent.final_stages decoder --runs runs/tiny-latent --minutes 12

Both are trained on latents with the noise that tokens have. The encoder sees single cells anyway, so a small network on
single cells replaces the decoder, at a sixth of the time; running statistics of the latents keep their variance at one,
so the encoder cannot reduce the noise by scaling. The decoder is then trained on whole scenes, packed ones mostly, with
larger weights of objects. After the target, it is trained on samples of the target (`final_stages.py`).
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

from polydraft.apps.lab.recipes.image.data import images_to_tensor, packed_scene, pixel_weights
from polydraft.apps.lab.recipes.image.losses import reconstruction_loss
from polydraft.apps.lab.recipes.latent.data import GlyphLatents
from polydraft.apps.lab.training.clock import Clock
from polydraft.apps.lab.training.optimizer import apply_gradients, cosine_decay, set_rate
from polydraft.core.distillation.export import atomic_dir
from polydraft.core.model.precision import mixed_precision
from polydraft.modalities.image.latent.autoencoder import CELL, LatentAutoencoder, build_autoencoder
from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS
from polydraft.modalities.world.scene import BACKGROUNDS, PlacedObject, Scene, place_objects, random_composition

NOISE = 0.3  # in units of a normalised latent: more than that of tokens, as sampled latents are off by more
BEYOND = 3.0  # normalised latents beyond it are penalised
ROWS, RATE = 8, 2e-3  # of the decoder
THINGS = 2.0  # weight of a pixel in an object's box; a background pixel has 1


def image_loss(decoded: Tensor, pixels: Tensor, weight: Tensor) -> Tensor:
    """Return the absolute and squared error, and that of differences between neighbours, which keeps edges sharp."""
    error = decoded - pixels
    steps = error.diff(dim=-1).abs() * weight[..., 1:], error.diff(dim=-2).abs() * weight[..., 1:, :]
    return reconstruction_loss(decoded, pixels, weight) + 0.5 * (steps[0].mean() + steps[1].mean())


@torch.no_grad()
def psnr(codec: LatentAutoencoder, scenes: list[Scene], noise: float = NOISE, seed: int = 0) -> tuple[float, float]:
    """Return the PSNR in dB of images decoded from noisy latents: over whole images, and inside boxes of objects."""
    generator = torch.Generator().manual_seed(seed)
    image_psnr, box_psnr = [], []
    for start in range(0, len(scenes), 10):
        part = scenes[start : start + 10]
        pixels = images_to_tensor([scene.render() for scene in part])
        latents = codec.encode(pixels)
        latents = latents + noise * torch.randn(latents.shape, generator=generator)
        error = ((codec.decode(latents).clamp(-1, 1) - pixels) / 2).square().mean(1)
        image_psnr.append(error.mean())
        for scene, square in zip(part, error, strict=True):
            box_psnr += [square[o.y : o.y + o.side, o.x : o.x + o.side].mean() for o in scene.objects]
    decibels = [-10 * math.log10(torch.stack(values).mean().item()) for values in (image_psnr, box_psnr)]
    return decibels[0], decibels[1]


def all_glyph_cells() -> Tensor:
    """Return all cells [N, 3, 8, 8] in -1..1 of all glyphs on all backgrounds."""
    found = []
    for background in BACKGROUNDS:
        for size, side in GLYPH_SIZES.items():
            pixels = images_to_tensor(
                [Scene(background, (PlacedObject(kind, size, 0, 0),)).render()[:side, :side] for kind in KINDS]
            )
            cells = pixels.unfold(2, CELL, CELL).unfold(3, CELL, CELL).permute(0, 2, 3, 1, 4, 5)
            found.append(cells.reshape(-1, 3, CELL, CELL))
    return torch.cat(found)


def save(codec: LatentAutoencoder, folder: Path) -> None:
    """Save in bf16, with the encoder's variances set to the noise of tokens."""
    weights = {name: weight.detach().to(torch.bfloat16) for name, weight in codec.vae.state_dict().items()}
    weights["encoder.conv_out.weight"][codec.size :] = 0
    weights["encoder.conv_out.bias"][codec.size :] = 2 * (NOISE * codec.deviation).log()
    latent_statistics = {"latents_mean": codec.mean.tolist(), "latents_std": codec.deviation.tolist()}
    copy: Any = AutoencoderKL.from_config(codec.vae.config, **latent_statistics)
    copy.load_state_dict(weights, assign=True)
    copy.register_to_config(_name_or_path="")  # else the saved configuration holds a local path
    with atomic_dir(folder) as made:
        copy.save_pretrained(made)


def train_encoder(out: Path, minutes: float, seed: int = 0, rows: int = 1024, rate: float = 2e-3) -> None:
    """Train the encoder, the first stage; the decoder saved to `out` is untrained."""
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    codec = LatentAutoencoder(build_autoencoder())
    codec.vae.to(memory_format=torch.channels_last)
    norm = nn.BatchNorm1d(codec.size, eps=1e-6, momentum=0.02, affine=False)
    reader = nn.Sequential(
        nn.Linear(codec.size, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(),
        nn.Linear(512, 3 * CELL**2), nn.Unflatten(1, (3, CELL, CELL)),
    )  # fmt: skip
    cells, weight = all_glyph_cells(), torch.ones(1, 1, CELL, CELL)
    optimiser = torch.optim.AdamW([*codec.vae.encoder.parameters(), *reader.parameters()], betas=(0.9, 0.95))
    clock, step = Clock(), 0
    while (spent := clock.spent() / (minutes * 60)) < 1:
        set_rate([optimiser], rate * cosine_decay(spent, step))
        pixels = cells[torch.randint(len(cells), (rows,))]
        with mixed_precision():
            latents = norm(codec.encode_cells(pixels))
            decoded = reader(latents + NOISE * torch.randn(latents.shape)).float()
        beyond = (latents.abs() - BEYOND).clamp(min=0).square().mean()
        loss = image_loss(decoded, pixels, weight)
        (loss + 0.1 * beyond).backward()
        apply_gradients([optimiser], codec)
        step += 1
        if step % 100 == 0:
            decibels = -10 * math.log10(((decoded - pixels) / 2).square().mean().item())
            print(f"{spent * minutes:5.1f}m step {step} loss {loss.item():.4f} cells {decibels:.2f} dB", flush=True)
    found = norm.state_dict()
    codec.mean, codec.deviation = found["running_mean"].clone(), found["running_var"].sqrt()
    finalise_encoder(codec)
    save(codec, out)


@torch.no_grad()
def finalise_encoder(codec: LatentAutoencoder) -> None:
    """Round the encoder's weights to bf16, as they are saved, and compute statistics over all distinct latents."""
    for weight in codec.vae.encoder.parameters():
        weight.copy_(weight.to(torch.bfloat16))
    distinct = GlyphLatents(codec).table
    codec.mean = codec.mean + codec.deviation * distinct.mean(0)
    codec.deviation = codec.deviation * distinct.std(0)


def train_decoder(out: Path, minutes: float, seed: int = 0) -> None:
    """Train the decoder of `out`, the second stage, on latents of its encoder that are computed once."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    codec = LatentAutoencoder.from_folder(out).float()
    glyphs = GlyphLatents(codec)

    def encoded(step: int) -> tuple[Tensor, list[Scene]]:
        plain = step % 4 == 3  # mostly background, which has to stay flat
        scenes = [place_objects(random_composition(rng), rng) if plain else packed_scene(rng) for _ in range(ROWS)]
        latents = glyphs.encode_scenes(scenes)
        return latents + NOISE * torch.randn(latents.shape), scenes

    fit_decoder(codec, out, encoded, minutes, RATE)


def fit_decoder(
    codec: LatentAutoencoder, out: Path, sample: Callable[[int], tuple[Tensor, list[Scene]]], minutes: float,
    rate: float,
) -> None:  # fmt: skip
    """Train the decoder of `codec` for `minutes`, and save it to `out`.

    Args:
        codec (LatentAutoencoder): autoencoder in fp32.
        out (Path): folder of the autoencoder.
        sample (Callable): returns for a step latents [B, H/8, W/8, C] with the noise of tokens, and their scenes.
        minutes (float): wall time.
        rate (float): highest learning rate.
    """
    held_out = np.random.default_rng(10_000)
    validation = [place_objects(random_composition(held_out, True), held_out) for _ in range(100)]
    codec.vae.to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(codec.vae.decoder.parameters(), betas=(0.9, 0.95), weight_decay=1e-4)
    clock, step = Clock(), 0
    while (spent := clock.spent() / (minutes * 60)) < 1:
        set_rate([optimiser], rate * cosine_decay(spent, step))
        latents, scenes = sample(step)
        pixels = images_to_tensor([scene.render() for scene in scenes])
        with mixed_precision():
            decoded = codec.decode(latents)
        loss = image_loss(decoded, pixels, pixel_weights(scenes, THINGS))
        loss.backward()
        apply_gradients([optimiser], codec)
        step += 1
        if step % 50 == 0:
            print(f"{spent * minutes:5.1f}m step {step} loss {loss.item():.4f}", flush=True)
        if step % 400 == 0:
            save(codec, out)
            image_psnr, box_psnr = psnr(codec, validation[:20])
            print(f"{spent * minutes:5.1f}m step {step} psnr {image_psnr:.2f} in boxes {box_psnr:.2f}", flush=True)
    save(codec, out)
    image_psnr, box_psnr = psnr(LatentAutoencoder.from_folder(out).float(), validation)
    print(f"final psnr {image_psnr:.2f} in boxes {box_psnr:.2f}", flush=True)


STAGES: dict[str, Callable[..., Any]] = {"encoder": train_encoder, "decoder": train_decoder}

if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--seed", type=int, default=0)
    args: argparse.Namespace = parser.parse_args()
    STAGES[args.stage](args.out, args.minutes, args.seed)
