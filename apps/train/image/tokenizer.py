"""Train the emoji world's VQ tokenizer.

    python -m polydraft.apps.train.image.tokenizer --out runs/tiny-image/tokenizer --minutes 25
    python -m polydraft.apps.train.image.tokenizer --out runs/settings/tokenizer --world settings --codes 4096 \\
        --minutes 18 --begin assets/models/tiny-image/tokenizer

Straight-through estimator, codebook by exponential moving averages (van den Oord et al. 2017, "Neural Discrete
Representation Learning", appendix A), dead codes restarted on encoder outputs. Scenes are packed with glyphs: an
empty background teaches nothing. The learning rate follows the clock, so any budget ends annealed.

With settings, most scenes are textured, errors in things' boxes count more than the ground's, and texture is asked for
its power (`appearance.py`; a critic comes with `decoder.py`, when codes stay as they are). Such a tokenizer may begin
as one of the flat world, whose codes it keeps, with new directions for new ones: what a target knows of flat scenes
stays true. A run that was stopped goes on where it was (`run.pt`); what is measured is kept in `measures.json`: PSNR,
and power by octave, decoded over rendered. A step of 8 pictures takes 0.2 s on two cores.
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

from polydraft.apps.train.checkpoint import save
from polydraft.apps.train.clock import Clock
from polydraft.apps.train.image.appearance import THINGS, apart, bands_apart
from polydraft.apps.train.image.data import Floats, boxes, packed_scene, views
from polydraft.apps.train.optimise import annealed, set_rate
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.precision import mixed
from polydraft.modalities.image.vq import VQConfig, VQTokenizer, channels_last
from polydraft.modalities.output import whole, write_text
from polydraft.modalities.world.judging.likeness import octaves
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import BACKGROUNDS, Scene, place
from polydraft.modalities.world.worlds import FLAT, TEXTURED, WORLDS, World

SPECTRAL = 0.05  # weight of power by octave beside the errors
KEEPING = 1.0  # weight of staying with an elder's latents
TEXTURED_SHARE = 0.7  # of scenes, in a world with settings
TELL_EVERY, KEEP_EVERY = 100, 500  # steps


@torch.no_grad()
def decoded_pairs(model: VQTokenizer, scenes: list[Scene]) -> tuple[Tensor, Tensor]:
    """Rendered scenes and what comes back of them, `[B, 3, 128, 128]` in -1..1."""
    rendered, back = [], []
    for start in range(0, len(scenes), 10):
        pixels, told = views(scenes[start : start + 10])
        with mixed():
            back.append(model.decode(model.encode(told)).float().clamp(-1, 1))
        rendered.append(pixels)
    return torch.cat(rendered), torch.cat(back)


def psnr(model: VQTokenizer, scenes: list[Scene]) -> tuple[float, float]:
    """Reconstruction PSNR in dB over whole pictures and inside glyph boxes (mean of squared errors, then the log)."""
    rendered, back = decoded_pairs(model, scenes)
    return decibels(rendered, back, scenes)


def decibels(rendered: Tensor, back: Tensor, scenes: list[Scene]) -> tuple[float, float]:
    error = ((back - rendered) / 2).square().mean(1)
    inside = [
        square[item.y : item.y + item.side, item.x : item.x + item.side].mean()
        for scene, square in zip(scenes, error, strict=True) for item in scene.objects
    ]  # fmt: skip
    return -10 * math.log10(error.mean().item()), -10 * math.log10(torch.stack(inside).mean().item())


def measures(model: VQTokenizer, world: World, n: int) -> dict[str, object]:
    """PSNR of held-out scenes, flat and textured ones, and power by octave, decoded over rendered, by setting."""
    found: dict[str, object] = {}
    rng = np.random.default_rng(10_000)
    for part in (FLAT, TEXTURED):
        if not {*part.backgrounds} <= {*world.backgrounds}:
            continue
        scenes = [place(part.composition(rng, held_out=True), rng) for _ in range(n)]
        rendered, back = decoded_pairs(model, scenes)
        whole, inside = decibels(rendered, back, scenes)
        found[part.name] = {"psnr": whole, "psnr_in_boxes": inside}
        if part is TEXTURED:
            power = {"all": ratios(rendered, back)}
            for name in SETTINGS:
                here = torch.tensor([scene.background == name for scene in scenes])
                if here.any():
                    power[name] = ratios(rendered[here], back[here])
            found["power"] = power
    return found


def ratios(rendered: Tensor, back: Tensor) -> list[float]:
    """Power of decoded over power of rendered pictures, in every octave."""
    return [round(ratio, 3) for ratio in (octaves(back).mean(0) / octaves(rendered).mean(0)).tolist()]


class MovingCodebook:
    """Codebook statistics kept as moving averages; codes nobody uses restart on current latents. The first `fixed`
    codes stay as they are."""

    def __init__(self, model: VQTokenizer, decay: float = 0.98, fixed: int = 0) -> None:
        self.model, self.decay, self.fixed = model, decay, fixed
        self.counts = torch.ones(model.config.codebook_size)
        if fixed:
            self.counts[fixed:] = 0  # nothing is near them yet: they restart at once
        self.sums = model.codebook.clone()

    @torch.no_grad()
    def update(self, latents: Tensor, codes: Tensor, restart: bool) -> int:
        flat, ids = latents.reshape(-1, latents.shape[-1]), codes.reshape(-1)
        # a background fills most cells: count distinct latents more evenly than by frequency
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


class Scenes:
    """What a tokenizer learns from: packed scenes of a world, and with settings some of the grammar's own."""

    def __init__(self, world: World, seed: Sequence[int]) -> None:
        self.world, self.rng = world, np.random.default_rng(seed)

    def draw(self, rows: int, chances: Floats | None = None) -> list[Scene]:
        """chances: of kinds in packed scenes, `[K]`."""
        return [self.one(chances) for _ in range(rows)]

    def one(self, chances: Floats | None = None) -> Scene:
        if not self.world.settings:
            return packed_scene(self.rng, chances=chances)
        if self.rng.random() > TEXTURED_SHARE:
            return packed_scene(self.rng, int(self.rng.integers(6, 25)), chances=chances)
        if self.rng.random() < 0.4:
            return place(TEXTURED.composition(self.rng), self.rng)
        return packed_scene(self.rng, int(self.rng.integers(3, 25)), self.world.settings, chances)


def grown(elder: VQTokenizer, codes: int) -> VQTokenizer:
    """A tokenizer that begins as `elder`, with more codes, and directions that the old ones do not use."""
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


class Tokenizing:
    """A run: the model, its codebook's averages and its optimiser; all of it is kept on disk.

    elder: a tokenizer of the flat world, as which the model begins, and with whose latents of flat scenes it stays.
    """

    def __init__(
        self, world: World, codes: int, seed: int, spectral: float = SPECTRAL, elder: VQTokenizer | None = None
    ) -> None:
        torch.manual_seed(seed)
        self.world, self.spectral, self.elder = world, spectral, elder
        self.model = channels_last(grown(elder, codes) if elder else VQTokenizer(VQConfig(codebook_size=codes)))
        # few latents a batch hit one of many codes: averages are longer
        fixed = elder.config.codebook_size if elder else 0
        self.moving = MovingCodebook(self.model, 1 - 0.02 * min(1, 2048 / codes), fixed)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=1e-4)
        self.step, self.seconds = 0, 0.0

    def train(self, pixels: Tensor, told: Tensor, weight: Tensor, flat: Tensor, spent: float) -> dict[str, float]:
        """One step on pictures and what codes tell of them, `[B, 3, 128, 128]`; weight: `[B, 1, 128, 128]`; flat `[B]`:
        which are the flat world's; spent: share of the minutes."""
        set_rate([self.optimiser], 2e-3 * annealed(spent, self.step))
        with mixed():
            latents = self.model.latents(told)
            codes = self.model.quantise(latents.detach())
            quantised = self.model.codebook[codes]
            decoded = self.model.reconstruct(latents + (quantised - latents).detach())
        decoded = decoded.float()
        commitment = (latents - quantised).square().sum(-1).mean()
        loss = apart(decoded, pixels, weight) + 0.1 * commitment
        figures = {"commit": commitment.item()}
        if self.world.settings:
            bands = bands_apart(decoded, pixels)
            loss = loss + self.spectral * bands
            figures["bands"] = bands.item()
        if self.elder and flat.any():
            strayed = self.strayed(told[flat], latents[flat])
            loss = loss + KEEPING * strayed
            figures["strayed"] = strayed.item()
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        restarts = self.moving.update(latents.detach(), codes, restart=self.step % 20 == 0 and spent < 0.7)
        self.step += 1
        return {"loss": loss.item(), **figures, "codes": len(codes.unique()), "restarts": restarts}

    def strayed(self, told: Tensor, latents: Tensor) -> Tensor:
        """Mean squared distance of latents from the elder's."""
        assert self.elder is not None
        with torch.no_grad():
            before = self.elder.latents(told)
        return (latents[..., : before.shape[-1]] - before).square().sum(-1).mean()

    def parts(self) -> dict[str, nn.Module | torch.optim.Optimizer]:
        return {"model": self.model, "optimiser": self.optimiser}

    def keep(self, out: Path) -> None:
        """The tokenizer as it is used, and the run as it can go on; neither is ever half written."""
        save(self.model, out)
        state: dict[str, Any] = {name: part.state_dict() for name, part in self.parts().items()}
        state |= {"counts": self.moving.counts, "sums": self.moving.sums, "step": self.step, "seconds": self.seconds}
        with whole(out / "run.pt") as file:
            torch.save(state, file)

    def go_on(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        for name, part in self.parts().items():
            part.load_state_dict(state[name])
        self.moving.counts, self.moving.sums = state["counts"], state["sums"]
        self.step, self.seconds = state["step"], state["seconds"]


def held_out(world: World) -> list[Scene]:
    """Scenes to tell of while training goes on."""
    rng = np.random.default_rng(10_000)
    return [place(world.composition(rng, True), rng) for _ in range(20)]


def tell(seconds: float, step: int, figures: dict[str, float], decibels: tuple[float, float]) -> None:
    said = " ".join(f"{name} {value:.4g}" for name, value in figures.items())
    print(f"{seconds:6.0f}s step {step} {said} psnr {decibels[0]:.2f} in boxes {decibels[1]:.2f}", flush=True)


def measure(model: VQTokenizer, world: World, out: Path) -> None:
    """Leave in `out`, and print, what a hundred held-out scenes of each part of `world` say."""
    found = json.dumps(measures(model, world, 100), indent=2)
    write_text(out / "measures.json", found + "\n")
    print(found, flush=True)


def run(
    out: Path, minutes: float, seed: int = 0, rows: int = 8, codes: int = 2048, world: str = "flat",
    spectral: float = SPECTRAL, begin: Path | None = None,
) -> None:  # fmt: skip
    """Train until `minutes` are spent, runs before included, and leave the tokenizer in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    among = WORLDS[world]
    validation = held_out(among)
    task = Tokenizing(among, codes, seed, spectral, VQTokenizer.from_folder(begin) if begin else None)
    if (out / "run.pt").exists():
        task.go_on(out / "run.pt")
    scenes = Scenes(among, (seed, task.step))
    print(f"{sum(p.numel() for p in task.model.parameters()) / 1e6:.2f}M parameters, step {task.step}", flush=True)
    clock, budget = Clock(task.seconds), minutes * 60
    while task.seconds < budget:
        drawn = scenes.draw(rows)
        weight = boxes(drawn, THINGS) if among.settings else torch.ones(1)
        flat = torch.tensor([scene.background in BACKGROUNDS for scene in drawn])
        figures = task.train(*views(drawn), weight, flat, task.seconds / budget)
        task.seconds = clock.spent()
        if task.step % TELL_EVERY == 0:
            tell(task.seconds, task.step, figures, psnr(task.model, validation))
        if task.step % KEEP_EVERY == 0:
            task.keep(out)
    task.keep(out)
    measure(task.model, among, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--codes", type=int, default=2048, help="size of the codebook")
    parser.add_argument("--world", choices=WORLDS, default="flat")
    parser.add_argument("--begin", type=Path, help="folder of a tokenizer of the flat world, whose codes stay")
    parser.add_argument("--spectral", type=float, default=SPECTRAL, help="weight of power by octave")
    run(**vars(parser.parse_args()))
