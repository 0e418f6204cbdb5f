"""Train the emoji world's VQ tokenizer.

    python -m polydraft.apps.train.image.tokenizer --out runs/tiny-image/tokenizer --minutes 25
    python -m polydraft.apps.train.image.tokenizer --out runs/tiny-image/tokenizer --world settings --codes 4096 \\
        --minutes 90

Straight-through estimator, codebook by exponential moving averages (van den Oord et al. 2017, "Neural Discrete
Representation Learning", appendix A), dead codes restarted on encoder outputs. Scenes are packed with glyphs: an
empty background teaches nothing. The learning rate follows the clock, so any budget ends annealed.

With settings, most scenes are textured, errors in things' boxes count more than the ground's, and texture is
asked for its power and has to pass a critic in the second half (`appearance.py`). A run that was stopped goes on where
it was (`run.pt`); what is measured is kept in `measures.json`: PSNR, and power by octave, decoded over rendered.
A step of 8 pictures takes 0.75 s of processor time on one core, and 1.05 s with the critic: 60 % of it is the backward
pass, 20 % the decoder's forward one, 6 % drawing scenes; on two cores 90 minutes are some 11,000 steps.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.apps.train.checkpoint import save
from polydraft.apps.train.clock import Clock
from polydraft.apps.train.image.appearance import THINGS, Adversary, apart, bands_apart
from polydraft.apps.train.image.data import boxes, grounds, packed_scene, to_pixels
from polydraft.apps.train.optimise import annealed, set_rate
from polydraft.modalities.image.vq import VQConfig, VQTokenizer, channels_last
from polydraft.modalities.world.judging.likeness import octaves
from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import Scene, place
from polydraft.modalities.world.worlds import FLAT, TEXTURED, WORLDS, World

SPECTRAL, FOOLING = 0.05, 0.3  # weights beside the errors'; the critic's is of their own pull on the last layer
CRITIC_FROM = 0.5  # share of the minutes after which there is a critic
TEXTURED_SHARE = 0.7  # of scenes, in a world with settings
TELL_EVERY, KEEP_EVERY = 100, 500  # steps


@torch.no_grad()
def decoded_pairs(model: VQTokenizer, scenes: list[Scene]) -> tuple[Tensor, Tensor]:
    """Rendered scenes and what comes back of them, `[B, 3, 128, 128]` in -1..1."""
    rendered, back = [], []
    for start in range(0, len(scenes), 10):
        pixels = to_pixels([scene.render() for scene in scenes[start : start + 10]])
        with torch.autocast("cpu", torch.bfloat16):
            back.append(model.decode(model.encode(pixels)).float().clamp(-1, 1))
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
    """Codebook statistics kept as moving averages; codes nobody uses restart on current latents."""

    def __init__(self, model: VQTokenizer, decay: float = 0.98) -> None:
        self.model, self.decay = model, decay
        self.counts = torch.ones(model.config.codebook_size)
        self.sums = model.codebook.clone()

    @torch.no_grad()
    def update(self, latents: Tensor, codes: Tensor, restart: bool) -> int:
        flat, ids = latents.reshape(-1, latents.shape[-1]), codes.reshape(-1)
        # a background fills most cells: count distinct latents more evenly than by frequency
        weight = torch.bincount(ids, minlength=len(self.counts)).clamp(min=1).float().rsqrt()[ids]
        self.counts.mul_(self.decay).index_add_(0, ids, weight * (1 - self.decay))
        self.sums.mul_(self.decay).index_add_(0, ids, flat * weight[:, None] * (1 - self.decay))
        dead = (self.counts < 2e-3).nonzero().squeeze(-1)
        if restart and len(dead):
            fit = (flat * self.model.codebook[ids]).sum(-1)  # restart where the codebook fits worst
            chosen = torch.multinomial((1 - fit).clamp(min=1e-6), min(len(dead), len(flat)))
            dead = dead[: len(chosen)]
            self.sums[dead], self.counts[dead] = flat[chosen] * 0.02, 0.02
        self.model.codebook.copy_(F.normalize(self.sums, dim=-1))
        return len(dead)


class Scenes:
    """What a tokenizer learns from: packed scenes of a world, and with settings some of the grammar's own."""

    def __init__(self, world: World, seed: Sequence[int]) -> None:
        self.world, self.rng = world, np.random.default_rng(seed)

    def draw(self, rows: int) -> list[Scene]:
        return [self.one() for _ in range(rows)]

    def one(self) -> Scene:
        if not self.world.settings:
            return packed_scene(self.rng)
        if self.rng.random() > TEXTURED_SHARE:
            return packed_scene(self.rng, tries=int(self.rng.integers(6, 25)))
        if self.rng.random() < 0.4:
            return place(TEXTURED.composition(self.rng), self.rng)
        return packed_scene(self.rng, int(self.rng.integers(3, 25)), self.world.settings)


class Tokenizing:
    """A run: the model, its codebook's averages, its critic, and their optimisers; all of it is kept on disk."""

    def __init__(
        self, world: World, codes: int, seed: int, spectral: float = SPECTRAL, fooling: float = FOOLING
    ) -> None:
        torch.manual_seed(seed)
        self.world, self.spectral, self.fooling = world, spectral, fooling
        self.model = channels_last(VQTokenizer(VQConfig(codebook_size=codes)))
        # few latents a batch hit one of many codes: averages are longer
        self.moving = MovingCodebook(self.model, 1 - 0.02 * min(1, 2048 / codes))
        self.adversary = Adversary()
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=1e-4)
        self.step, self.seconds = 0, 0.0

    def train(self, pixels: Tensor, weight: Tensor, spent: float) -> dict[str, float]:
        """One step on pictures `[B, 3, 128, 128]`; weight: `[B, 1, 128, 128]`; spent: share of the minutes."""
        set_rate([self.optimiser], 2e-3 * annealed(spent, self.step))
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        textured = bool(self.world.settings)
        with torch.autocast("cpu", torch.bfloat16):
            latents = self.model.latents(pixels)
            codes = self.model.quantise(latents.detach())
            quantised = self.model.codebook[codes]
            decoded = self.model.reconstruct(latents + (quantised - latents).detach())
        decoded = decoded.float()
        commitment = (latents - quantised).square().sum(-1).mean()
        wanted = apart(decoded, pixels, weight)
        told = {"commit": commitment.item()}
        if textured:
            bands = bands_apart(decoded, pixels)
            wanted = wanted + self.spectral * bands
            told["bands"] = bands.item()
        loss = wanted + 0.1 * commitment
        if textured and self.fooling and spent > CRITIC_FROM:
            pull, told["critic"] = self.adversary.pull(pixels, decoded, grounds(weight), wanted, self.model.last)
            loss = loss + self.fooling * min(1.0, (spent - CRITIC_FROM) / 0.1) * pull
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        restarts = self.moving.update(latents.detach(), codes, restart=self.step % 20 == 0 and spent < 0.7)
        self.step += 1
        return {"loss": loss.item(), **told, "codes": len(codes.unique()), "restarts": restarts}

    def parts(self) -> dict[str, nn.Module | torch.optim.Optimizer]:
        critic, judging = self.adversary.critic, self.adversary.optimiser
        return {"model": self.model, "critic": critic, "optimiser": self.optimiser, "judging": judging}

    def keep(self, out: Path) -> None:
        """The tokenizer as it is used, and the run as it can go on; neither is ever half written."""
        save(self.model, out)
        state: dict[str, Any] = {name: part.state_dict() for name, part in self.parts().items()}
        state |= {"counts": self.moving.counts, "sums": self.moving.sums, "step": self.step, "seconds": self.seconds}
        torch.save(state, out / "run.pt.part")
        (out / "run.pt.part").rename(out / "run.pt")

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


def tell(seconds: float, step: int, told: dict[str, float], decibels: tuple[float, float]) -> None:
    figures = " ".join(f"{name} {value:.4g}" for name, value in told.items())
    print(f"{seconds:6.0f}s step {step} {figures} psnr {decibels[0]:.2f} in boxes {decibels[1]:.2f}", flush=True)


def measure(model: VQTokenizer, world: World, out: Path) -> None:
    """Leave in `out`, and print, what a hundred held-out scenes of each part of `world` say."""
    found = json.dumps(measures(model, world, 100), indent=2)
    (out / "measures.json").write_text(found + "\n")
    print(found, flush=True)


def run(
    out: Path, minutes: float, seed: int = 0, rows: int = 8, codes: int = 2048, world: str = "flat",
    spectral: float = SPECTRAL, fooling: float = FOOLING,
) -> None:  # fmt: skip
    """Train until `minutes` are spent, runs before included, and leave the tokenizer in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    among = WORLDS[world]
    validation = held_out(among)
    task = Tokenizing(among, codes, seed, spectral, fooling)
    if (out / "run.pt").exists():
        task.go_on(out / "run.pt")
    scenes = Scenes(among, (seed, task.step))
    print(f"{sum(p.numel() for p in task.model.parameters()) / 1e6:.2f}M parameters, step {task.step}", flush=True)
    clock, budget = Clock(task.seconds), minutes * 60
    while task.seconds < budget:
        drawn = scenes.draw(rows)
        weight = boxes(drawn, THINGS) if among.settings else torch.ones(1)
        told = task.train(to_pixels([scene.render() for scene in drawn]), weight, task.seconds / budget)
        task.seconds = clock.spent()
        if task.step % TELL_EVERY == 0:
            tell(task.seconds, task.step, told, psnr(task.model, validation))
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
    parser.add_argument("--spectral", type=float, default=SPECTRAL, help="weight of power by octave")
    parser.add_argument("--fooling", type=float, default=FOOLING, help="weight of the critic; 0 for none")
    run(**vars(parser.parse_args()))
