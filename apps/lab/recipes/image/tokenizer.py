"""Train the emoji world's VQ tokenizer.

    python -m polydraft.apps.lab.recipes.image.tokenizer --out runs/tiny-image/tokenizer --minutes 25
    python -m polydraft.apps.lab.recipes.image.tokenizer --out runs/settings/tokenizer --world settings --codes 4096 \\
        --minutes 18 --begin assets/models/tiny-image/tokenizer

Straight-through estimator, codebook by exponential moving averages (van den Oord et al. 2017, "Neural Discrete
Representation Learning", appendix A), dead codes restarted on encoder outputs. Scenes are packed with glyphs: an
empty background has nothing to learn. The learning rate follows the clock, so any budget ends annealed.

With settings, most scenes are textured, errors in boxes of objects count more than those of the background, and a loss
keeps the power of texture (`losses.py`; `decoder.py` adds a critic, when codes are fixed). Such a tokenizer may be
initialised from one of the flat world, whose codes it keeps, with new dimensions for new ones, so that a flat target
stays valid. An interrupted run resumes (`run.pt`). Metrics are written to `measures.json`: PSNR, and power by octave,
decoded over rendered. A step of 8 images takes 0.2 s on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.apps.lab.judging.texture_statistics import octave_power
from polydraft.apps.lab.recipes.image.data import Floats, packed_scene, pixel_weights, render_views
from polydraft.apps.lab.recipes.image.losses import THINGS, octave_loss, reconstruction_loss
from polydraft.apps.lab.training.checkpoint import save
from polydraft.apps.lab.training.clock import Clock
from polydraft.apps.lab.training.optimizer import cosine_decay, set_rate
from polydraft.core.errors import InvalidArgument
from polydraft.core.folders.atomic_files import atomic_file
from polydraft.core.model.precision import mixed_precision
from polydraft.modalities.image.vq import VQConfig, VQTokenizer, channels_last
from polydraft.modalities.output import write_text
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import BACKGROUNDS, Scene, place_objects
from polydraft.modalities.world.worlds import FLAT, TEXTURED, WORLDS, World

SPECTRAL = 0.05  # weight of power by octave beside the errors
KEEPING = 1.0  # weight of the distance to the flat tokenizer's latents
TEXTURED_SHARE = 0.7  # of scenes, in a world with settings
PRINT_EVERY, SAVE_EVERY = 100, 500  # steps


@torch.no_grad()
def reconstruct(model: VQTokenizer, scenes: list[Scene]) -> tuple[Tensor, Tensor]:
    """Return rendered scenes and their reconstructions, [B, 3, 128, 128] in -1..1."""
    rendered, decoded_images = [], []
    for start in range(0, len(scenes), 10):
        pixels, matted = render_views(scenes[start : start + 10])
        with mixed_precision():
            decoded_images.append(model.decode(model.encode(matted)).float().clamp(-1, 1))
        rendered.append(pixels)
    return torch.cat(rendered), torch.cat(decoded_images)


def psnr(model: VQTokenizer, scenes: list[Scene]) -> tuple[float, float]:
    """Return the PSNR in dB over whole images and inside glyph boxes (mean of squared errors, then the log)."""
    rendered, decoded_images = reconstruct(model, scenes)
    return reconstruction_psnr(rendered, decoded_images, scenes)


def reconstruction_psnr(rendered: Tensor, decoded_images: Tensor, scenes: list[Scene]) -> tuple[float, float]:
    error = ((decoded_images - rendered) / 2).square().mean(1)
    inside = [
        square[item.y : item.y + item.side, item.x : item.x + item.side].mean()
        for scene, square in zip(scenes, error, strict=True) for item in scene.objects
    ]  # fmt: skip
    return -10 * math.log10(error.mean().item()), -10 * math.log10(torch.stack(inside).mean().item())


def reconstruction_metrics(model: VQTokenizer, world: World, n: int) -> dict[str, object]:
    """Return the PSNR of held-out flat and textured scenes, and power by octave, decoded over rendered, by setting."""
    found: dict[str, object] = {}
    rng = np.random.default_rng(10_000)
    for part in (FLAT, TEXTURED):
        if not {*part.backgrounds} <= {*world.backgrounds}:
            continue
        scenes = [place_objects(part.random_composition(rng, held_out=True), rng) for _ in range(n)]
        rendered, decoded_images = reconstruct(model, scenes)
        whole, inside = reconstruction_psnr(rendered, decoded_images, scenes)
        found[part.name] = {"psnr": whole, "psnr_in_boxes": inside}
        if part is TEXTURED:
            power = {"all": octave_power_ratios(rendered, decoded_images)}
            for name in SETTINGS:
                here = torch.tensor([scene.background == name for scene in scenes])
                if here.any():
                    power[name] = octave_power_ratios(rendered[here], decoded_images[here])
            found["power"] = power
    return found


def octave_power_ratios(rendered: Tensor, decoded_images: Tensor) -> list[float]:
    """Return the power of decoded over that of rendered images in every octave."""
    ratios = octave_power(decoded_images).mean(0) / octave_power(rendered).mean(0)
    return [round(ratio, 3) for ratio in ratios.tolist()]


class MovingCodebook:
    """Codebook statistics as moving averages; unused codes restart on current latents, the first `fixed` codes stay."""

    def __init__(self, model: VQTokenizer, decay: float = 0.98, fixed: int = 0) -> None:
        self.model: VQTokenizer = model
        self.decay: float = decay
        self.fixed: int = fixed
        self.counts: Tensor = torch.ones(model.config.codebook_size)
        if fixed:
            self.counts[fixed:] = 0  # unused as yet, so they restart at once
        self.sums: Tensor = model.codebook.clone()

    @torch.no_grad()
    def update(self, latents: Tensor, codes: Tensor, restart: bool) -> int:
        flat, ids = latents.reshape(-1, latents.shape[-1]), codes.reshape(-1)
        # A background fills most cells: distinct latents count more evenly than by frequency.
        weight = torch.bincount(ids, minlength=len(self.counts)).clamp(min=1).float().rsqrt()[ids]
        self.counts.mul_(self.decay).index_add_(0, ids, weight * (1 - self.decay))
        self.sums.mul_(self.decay).index_add_(0, ids, flat * weight[:, None] * (1 - self.decay))
        dead = (self.counts[self.fixed :] < 2e-3).nonzero().squeeze(-1) + self.fixed
        if restart and len(dead):
            fit = (flat * self.model.codebook[ids]).sum(-1)  # restart where the codebook fits worst
            chosen = torch.multinomial((1 - fit).clamp(min=1e-6), min(len(dead), len(flat)))
            dead = dead[: len(chosen)]
            self.sums[dead], self.counts[dead] = flat[chosen] * 0.02, 0.02
        self.model.codebook[self.fixed :] = F.normalize(self.sums[self.fixed :], dim=-1)
        return len(dead)


class TokenizerScenes:
    """Training scenes of a tokenizer: packed scenes of a world, and with settings some of the grammar's."""

    def __init__(self, world: World, seed: Sequence[int]) -> None:
        self.world: World = world
        self.rng: np.random.Generator = np.random.default_rng(seed)

    def sample(self, rows: int, kind_probs: Floats | None = None) -> list[Scene]:
        """Sample `rows` scenes; `kind_probs` [K] are probabilities of kinds in packed scenes."""
        return [self.sample_one(kind_probs) for _ in range(rows)]

    def sample_one(self, kind_probs: Floats | None = None) -> Scene:
        if not self.world.settings:
            return packed_scene(self.rng, kind_probs=kind_probs)
        if self.rng.random() > TEXTURED_SHARE:
            return packed_scene(self.rng, int(self.rng.integers(6, 25)), kind_probs=kind_probs)
        if self.rng.random() < 0.4:
            return place_objects(TEXTURED.random_composition(self.rng), self.rng)
        return packed_scene(self.rng, int(self.rng.integers(3, 25)), self.world.settings, kind_probs)


def extend_codebook(elder: VQTokenizer, codes: int) -> VQTokenizer:
    """Return a tokenizer initialised from `elder`, with more codes and new dimensions that the old ones do not use."""
    old = elder.config
    if codes <= old.codebook_size:
        raise InvalidArgument(f"a tokenizer that keeps {old.codebook_size:,} codes needs more; give a greater --codes.")
    model = VQTokenizer(replace(old, codebook_size=codes, code_dim=2 * old.code_dim))
    weights, new = elder.state_dict(), model.state_dict()
    for name, weight in weights.items():
        if name == "codebook":
            new[name][: old.codebook_size] = F.pad(weight, (0, old.code_dim))
        elif weight.shape == new[name].shape:
            new[name] = weight
        else:  # to and from latents
            new[name].zero_()
            new[name][tuple(slice(extent) for extent in weight.shape)] = weight
    for added in (new["encoder.5.weight"][old.code_dim :], new["decoder.0.weight"][:, old.code_dim :]):
        added.copy_(0.02 * torch.randn(added.shape))
    model.load_state_dict(new)
    return model


class TokenizerTraining:
    """Training state, which is saved to disk: the model, its codebook's averages and its optimizer.

    `elder` is a tokenizer of the flat world that the model is initialised from; latents of flat scenes stay near its.
    """

    def __init__(
        self, world: World, codes: int, seed: int, spectral: float = SPECTRAL, elder: VQTokenizer | None = None
    ) -> None:
        torch.manual_seed(seed)
        self.world: World = world
        self.spectral: float = spectral
        self.elder: VQTokenizer | None = elder
        model = extend_codebook(elder, codes) if elder else VQTokenizer(VQConfig(codebook_size=codes))
        self.model: VQTokenizer = channels_last(model)
        # With many codes few latents of a batch hit any one, so averages are longer.
        fixed = elder.config.codebook_size if elder else 0
        self.moving: MovingCodebook = MovingCodebook(self.model, 1 - 0.02 * min(1, 2048 / codes), fixed)
        self.optimiser: torch.optim.AdamW
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=1e-4)
        self.step: int = 0
        self.seconds: Any = 0.0

    def train_step(
        self, pixels: Tensor, matted: Tensor, weight: Tensor, flat: Tensor, spent: float
    ) -> dict[str, float]:
        """Take a training step and return its figures.

        Args:
            pixels (Tensor): [B, 3, 128, 128] images.
            matted (Tensor): [B, 3, 128, 128] matted images, which are encoded.
            weight (Tensor): [B, 1, 128, 128] weight of pixels.
            flat (Tensor): [B] bool, images of the flat world.
            spent (float): share of the minutes used.
        """
        set_rate([self.optimiser], 2e-3 * cosine_decay(spent, self.step))
        with mixed_precision():
            latents = self.model.encode_latents(matted)
            codes = self.model.quantise(latents.detach())
            quantised = self.model.codebook[codes]
            decoded = self.model.decode_latents(latents + (quantised - latents).detach())
        decoded = decoded.float()
        commitment = (latents - quantised).square().sum(-1).mean()
        loss = reconstruction_loss(decoded, pixels, weight) + 0.1 * commitment
        figures = {"commit": commitment.item()}
        if self.world.settings:
            bands = octave_loss(decoded, pixels)
            loss = loss + self.spectral * bands
            figures["bands"] = bands.item()
        if self.elder and flat.any():
            strayed = self.latent_drift(matted[flat], latents[flat])
            loss = loss + KEEPING * strayed
            figures["strayed"] = strayed.item()
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        restarts = self.moving.update(latents.detach(), codes, restart=self.step % 20 == 0 and spent < 0.7)
        self.step += 1
        return {"loss": loss.item(), **figures, "codes": len(codes.unique()), "restarts": restarts}

    def latent_drift(self, matted: Tensor, latents: Tensor) -> Tensor:
        """Return the mean squared distance of latents from those of the flat tokenizer."""
        assert self.elder is not None
        with torch.no_grad():
            before = self.elder.encode_latents(matted)
        return (latents[..., : before.shape[-1]] - before).square().sum(-1).mean()

    def parts(self) -> dict[str, nn.Module | torch.optim.Optimizer]:
        return {"model": self.model, "optimiser": self.optimiser}

    def save_checkpoint(self, out: Path) -> None:
        """Save the tokenizer, and the training state to resume from, each atomically."""
        save(self.model, out)
        state: dict[str, Any] = {name: part.state_dict() for name, part in self.parts().items()}
        state |= {"counts": self.moving.counts, "sums": self.moving.sums, "step": self.step, "seconds": self.seconds}
        with atomic_file(out / "run.pt") as file:
            torch.save(state, file)

    def resume(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        for name, part in self.parts().items():
            part.load_state_dict(state[name])
        self.moving.counts, self.moving.sums = state["counts"], state["sums"]
        self.step, self.seconds = state["step"], state["seconds"]


def held_out_scenes(world: World) -> list[Scene]:
    """Return held-out scenes that are evaluated during training."""
    rng = np.random.default_rng(10_000)
    return [place_objects(world.random_composition(rng, True), rng) for _ in range(20)]


def print_progress(seconds: float, step: int, figures: dict[str, float], decibels: tuple[float, float]) -> None:
    line = " ".join(f"{name} {value:.4g}" for name, value in figures.items())
    print(f"{seconds:6.0f}s step {step} {line} psnr {decibels[0]:.2f} in boxes {decibels[1]:.2f}", flush=True)


def save_metrics(model: VQTokenizer, world: World, out: Path) -> None:
    """Evaluate a hundred held-out scenes of each part of `world`; print the metrics and save them to `out`."""
    found = json.dumps(reconstruction_metrics(model, world, 100), indent=2)
    write_text(out / "measures.json", found + "\n")
    print(found, flush=True)


def run(
    out: Path, minutes: float, seed: int = 0, rows: int = 8, codes: int = 2048, world: str = "flat",
    spectral: float = SPECTRAL, begin: Path | None = None,
) -> None:  # fmt: skip
    """Train until `minutes` are spent, including earlier runs, and save the tokenizer to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    scene_world = WORLDS[world]
    validation = held_out_scenes(scene_world)
    task = TokenizerTraining(scene_world, codes, seed, spectral, VQTokenizer.from_folder(begin) if begin else None)
    if (out / "run.pt").exists():
        task.resume(out / "run.pt")
    scenes = TokenizerScenes(scene_world, (seed, task.step))
    print(f"{sum(p.numel() for p in task.model.parameters()) / 1e6:.2f}M parameters, step {task.step}", flush=True)
    clock, budget = Clock(task.seconds), minutes * 60
    while task.seconds < budget:
        drawn = scenes.sample(rows)
        weight = pixel_weights(drawn, THINGS) if scene_world.settings else torch.ones(1)
        flat = torch.tensor([scene.background in BACKGROUNDS for scene in drawn])
        figures = task.train_step(*render_views(drawn), weight, flat, task.seconds / budget)
        task.seconds = clock.spent()
        if task.step % PRINT_EVERY == 0:
            print_progress(task.seconds, task.step, figures, psnr(task.model, validation))
        if task.step % SAVE_EVERY == 0:
            task.save_checkpoint(out)
    task.save_checkpoint(out)
    save_metrics(task.model, scene_world, out)


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--codes", type=int, default=2048, help="size of the codebook")
    parser.add_argument("--world", choices=WORLDS, default="flat")
    parser.add_argument("--begin", type=Path, help="folder of a tokenizer of the flat world, whose codes stay")
    parser.add_argument("--spectral", type=float, default=SPECTRAL, help="weight of power by octave")
    run(**vars(parser.parse_args()))
