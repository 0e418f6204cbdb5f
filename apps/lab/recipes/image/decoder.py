"""Train a new decoder for the codes of a tokenizer, so that models of these codes need no training.

    python -m polydraft.apps.lab.recipes.image.decoder --tokenizer runs/tiny-image/tokenizer \\
        --out runs/tiny-image/decoder --minutes 30 --grain 16

For textured scenes: with noise channels as input it can give backgrounds their power in every octave, which codes
cannot carry. Errors in boxes of objects count more than those of the background; a critic judges backgrounds alone. It
is initialised with the existing decoder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydraft.apps.lab.recipes.image.data import (
    Floats,
    background_share,
    pixel_weights,
    render_views,
    silhouette_weights,
)
from polydraft.apps.lab.recipes.image.losses import THINGS, Adversary, octave_loss, reconstruction_loss
from polydraft.apps.lab.recipes.image.tokenizer import (
    PRINT_EVERY,
    SAVE_EVERY,
    TokenizerScenes,
    held_out_scenes,
    print_progress,
    psnr,
    save_metrics,
)
from polydraft.apps.lab.training.checkpoint import save
from polydraft.apps.lab.training.clock import Clock
from polydraft.apps.lab.training.optimizer import cosine_decay, set_rate
from polydraft.core.model.precision import mixed_precision
from polydraft.modalities.image.vq import Grain, VQTokenizer, channels_last
from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.scene import Scene
from polydraft.modalities.world.worlds import EVERYTHING

SPECTRAL, FOOLING = 0.1, 0.2
RATE = 1e-3
UPDATE_RATE = 0.05  # update rate of the moving averages of errors
INITIAL_ERROR = 0.02  # initial squared error of an object's pixels
MAX_RATIO = 16
ORDER = {kind: at for at, kind in enumerate(KINDS)}


def with_grain(tokenizer: VQTokenizer, channels: int) -> VQTokenizer:
    """Return the tokenizer with `channels` of noise as input of its decoder; new ones have little effect at first."""
    if channels == tokenizer.config.grain:
        return channels_last(tokenizer)
    extended = channels_last(VQTokenizer(replace(tokenizer.config, grain=channels)))
    extended.encoder.load_state_dict(tokenizer.encoder.state_dict())
    extended.codebook.copy_(tokenizer.codebook)
    before, after = ([part for part in vq.decoder if not isinstance(part, Grain)] for vq in (tokenizer, extended))
    for part, state in zip(after, before, strict=True):
        part.load_state_dict(state.state_dict())
    return extended


class KindErrors:
    """Moving averages of the decoding error by kind; kinds with larger errors, thin or pale ones, are sampled more."""

    def __init__(self) -> None:
        self.known: NDArray[np.float64] = np.ones(len(KINDS))

    def update(self, decoded: Tensor, pixels: Tensor, scenes: Sequence[Scene]) -> None:
        """Update the errors of kinds from decoded images [B, 3, 128, 128], over silhouettes of objects in `scenes`."""
        error = (decoded.detach() - pixels).square().mean(1)
        for square, scene in zip(error, scenes, strict=True):
            for item in scene.objects:
                box = square[item.y : item.y + item.side, item.x : item.x + item.side]
                at, found = ORDER[item.kind], (box * silhouette_weights(item.kind, item.size)).mean().item()
                self.known[at] += UPDATE_RATE * (found / INITIAL_ERROR - self.known[at])

    @property
    def sampling_probs(self) -> Floats:
        """Return probabilities [K] of kinds in proportion to their errors, clipped to a ratio of `MAX_RATIO`."""
        share = np.clip(self.known / np.median(self.known), 0.5, 0.5 * MAX_RATIO)
        found: Floats = share / share.sum()
        return found


class DecoderTraining:
    """Training state: a tokenizer whose decoder is trained, and its critic."""

    def __init__(self, tokenizer: VQTokenizer, grain: int, spectral: float, fooling: float) -> None:
        self.model: VQTokenizer = with_grain(tokenizer, grain)
        self.adversary: Adversary = Adversary()
        self.spectral: float = spectral
        self.fooling: float = fooling
        self.errors: KindErrors = KindErrors()
        self.optimiser: torch.optim.AdamW
        self.optimiser = torch.optim.AdamW(self.model.decoder.parameters(), lr=RATE, betas=(0.9, 0.95))

    def train_step(self, scenes: list[Scene], things: float, spent: float) -> dict[str, float]:
        """Take a training step; `things` is the weight of objects' pixels, `spent` the share of the minutes used."""
        (pixels, matted), weight = render_views(scenes), pixel_weights(scenes, things)
        set_rate([self.optimiser], RATE * min(1.0, spent / 0.02 + 0.01) * cosine_decay(spent))
        self.model.train()
        with mixed_precision():
            with torch.no_grad():
                codes = self.model.encode(matted)
            decoded = self.model.decode(codes)
        self.model.eval()
        decoded = decoded.float()
        self.errors.update(decoded, pixels, scenes)
        bands = octave_loss(decoded, pixels)
        loss = wanted = reconstruction_loss(decoded, pixels, weight) + self.spectral * bands
        figures = {"loss": wanted.item(), "bands": bands.item()}
        if self.fooling:
            adversarial, figures["critic"] = self.adversary.adversarial_loss(
                pixels, decoded, background_share(weight), wanted, self.model.last_decoder_weight
            )
            loss = wanted + self.fooling * adversarial
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.decoder.parameters(), 1.0)
        self.optimiser.step()
        return figures


def run(
    tokenizer: Path, out: Path, minutes: float, grain: int = 16, seed: int = 0, rows: int = 8,
    things: float = THINGS, spectral: float = SPECTRAL, fooling: float = FOOLING,
) -> None:  # fmt: skip
    """Train the decoder of `tokenizer` for `minutes`, and save the tokenizer with it to `out` now and then."""
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    task = DecoderTraining(VQTokenizer.from_folder(tokenizer), grain, spectral, fooling)
    scenes = TokenizerScenes(EVERYTHING, (seed, 1))
    validation, clock = held_out_scenes(EVERYTHING), Clock()
    budget, step, spent = minutes * 60, 0, 0.0
    while spent < budget:
        figures = task.train_step(scenes.sample(rows, task.errors.sampling_probs), things, spent / budget)
        spent, step = clock.spent(), step + 1
        if step % PRINT_EVERY == 0:
            print_progress(spent, step, figures, psnr(task.model, validation))
        if step % SAVE_EVERY == 0:
            save(task.model, out)
    save(task.model, out)
    save_metrics(task.model, EVERYTHING, out)


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--grain", type=int, default=16, help="channels of noise the decoder is given; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--things", type=float, default=THINGS, help="weight of pixels in things' boxes")
    parser.add_argument("--spectral", type=float, default=SPECTRAL, help="weight of power by octave")
    parser.add_argument("--fooling", type=float, default=FOOLING, help="weight of the critic; 0 for none")
    run(**vars(parser.parse_args()))
