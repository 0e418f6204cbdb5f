"""Train the emoji world's VQ tokenizer.

    python -m polydraft.apps.train.image.tokenizer --out runs/tiny-image --minutes 25

Straight-through estimator, codebook by exponential moving averages (van den Oord et al. 2017, "Neural Discrete
Representation Learning", appendix A), dead codes restarted on encoder outputs. Scenes are packed with glyphs: an
empty background teaches nothing. The learning rate follows the clock, so any budget ends annealed.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.apps.train.checkpoint import save
from polydraft.apps.train.image.data import packed_scene, to_pixels
from polydraft.modalities.image.vq import VQConfig, VQTokenizer, channels_last
from polydraft.modalities.world.scene import Scene, place, random_composition


@torch.no_grad()
def psnr(model: VQTokenizer, scenes: list[Scene]) -> tuple[float, float]:
    """Reconstruction PSNR in dB over whole pictures and inside glyph boxes (mean of squared errors, then the log)."""
    whole, boxes = [], []
    for start in range(0, len(scenes), 10):
        part = scenes[start : start + 10]
        pixels = to_pixels([scene.render() for scene in part])
        with torch.autocast("cpu", torch.bfloat16):
            decoded = model.decode(model.encode(pixels)).float().clamp(-1, 1)
        error = ((decoded - pixels) / 2).square().mean(1)
        whole.append(error.mean())
        for scene, square in zip(part, error, strict=True):
            boxes += [square[o.y : o.y + o.side, o.x : o.x + o.side].mean() for o in scene.objects]
    decibels = [-10 * math.log10(torch.stack(values).mean().item()) for values in (whole, boxes)]
    return decibels[0], decibels[1]


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


def run(out: Path, minutes: float, seed: int = 0, rows: int = 8) -> None:
    """Train for `minutes` and leave the tokenizer in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    held_out = np.random.default_rng(10_000)
    validation = [place(random_composition(held_out, True), held_out) for _ in range(100)]

    model = channels_last(VQTokenizer(VQConfig()))
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    moving = MovingCodebook(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=1e-4)
    start, step, budget = time.time(), 0, minutes * 60
    while (elapsed := time.time() - start) < budget:
        rate = 2e-3 * min(1, (step + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * elapsed / budget)))
        for group in optimiser.param_groups:
            group["lr"] = rate
        pixels = to_pixels([packed_scene(rng).render() for _ in range(rows)])
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            latents = model.latents(pixels)
            codes = model.quantise(latents.detach())
            quantised = model.codebook[codes]
            decoded = model.reconstruct(latents + (quantised - latents).detach())
        error = decoded.float() - pixels
        commitment = (latents - quantised).square().sum(-1).mean()
        loss = error.abs().mean() + 4 * error.square().mean() + 0.1 * commitment
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        restarts = moving.update(latents.detach(), codes, restart=step % 20 == 0 and elapsed < 0.7 * budget)
        step += 1
        if step % 100 == 0:
            used = len(codes.unique())
            whole, boxes = psnr(model, validation[:20])
            print(f"{elapsed:6.0f}s step {step} loss {loss.item():.4f} psnr {whole:.2f} in boxes {boxes:.2f} "
                  f"commit {commitment.item():.4f} codes {used} restarts {restarts}", flush=True)  # fmt: skip
        if step % 500 == 0:
            save(model, out)
    save(model, out)
    whole, boxes = psnr(model, validation)
    print(f"final psnr {whole:.2f} in boxes {boxes:.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--seed", type=int, default=0)
    run(**vars(parser.parse_args()))
