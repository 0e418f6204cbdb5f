"""Train a decoder for a tokenizer's codes as they are: whatever speaks these codes need not learn anew.

    python -m polydraft.apps.train.image.decoder --tokenizer runs/tiny-image/tokenizer --out runs/tiny-image/decoder \\
        --minutes 30 --grain 16

For textured scenes: with noise to make grain of, it can give grounds their power in every octave, which codes cannot
carry. Errors in things' boxes count more than the ground's; a critic judges grounds alone. It begins as the decoder
there is.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polydraft.apps.train.checkpoint import save
from polydraft.apps.train.clock import Clock
from polydraft.apps.train.image.appearance import THINGS, Adversary, apart, bands_apart
from polydraft.apps.train.image.data import Floats, boxes, grounds, own, views
from polydraft.apps.train.image.tokenizer import KEEP_EVERY, TELL_EVERY, Scenes, held_out, measure, psnr, tell
from polydraft.apps.train.optimise import annealed, set_rate
from polydraft.core.model.precision import mixed
from polydraft.modalities.image.vq import Grain, VQTokenizer, channels_last
from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.scene import Scene
from polydraft.modalities.world.worlds import EVERYTHING

SPECTRAL, FOOLING = 0.1, 0.2
RATE = 1e-3
SEEN = 0.05  # of a kind's error is what was seen last
LIKELY = 0.02  # squared error of a thing's pixels, which is begun with
MOST = 16
ORDER = {kind: at for at, kind in enumerate(KINDS)}


def with_grain(tokenizer: VQTokenizer, channels: int) -> VQTokenizer:
    """The same tokenizer, whose decoder is given `channels` of noise; where it had none, they change little yet."""
    if channels == tokenizer.config.grain:
        return channels_last(tokenizer)
    made = channels_last(VQTokenizer(replace(tokenizer.config, grain=channels)))
    made.encoder.load_state_dict(tokenizer.encoder.state_dict())
    made.codebook.copy_(tokenizer.codebook)
    before, after = ([part for part in vq.decoder if not isinstance(part, Grain)] for vq in (tokenizer, made))
    for part, known in zip(after, before, strict=True):
        part.load_state_dict(known.state_dict())
    return made


class Errors:
    """How badly every kind of thing is decoded now: what is thin or pale is learned last, and shown more often."""

    def __init__(self) -> None:
        self.known = np.ones(len(KINDS))

    def see(self, decoded: Tensor, pixels: Tensor, scenes: Sequence[Scene]) -> None:
        """Take in pictures `[B, 3, 128, 128]` of `scenes`: squared errors of things' own pixels."""
        error = (decoded.detach() - pixels).square().mean(1)
        for square, scene in zip(error, scenes, strict=True):
            for item in scene.objects:
                box = square[item.y : item.y + item.side, item.x : item.x + item.side]
                at, found = ORDER[item.kind], (box * own(item.kind, item.size)).mean().item()
                self.known[at] += SEEN * (found / LIKELY - self.known[at])

    @property
    def chances(self) -> Floats:
        """`[K]`: of kinds, as their errors are; none more than `MOST` times as likely as another."""
        share = np.clip(self.known / np.median(self.known), 0.5, 0.5 * MOST)
        found: Floats = share / share.sum()
        return found


class Decoding:
    """A run: a tokenizer of which the decoder learns, and its critic."""

    def __init__(self, tokenizer: VQTokenizer, grain: int, spectral: float, fooling: float) -> None:
        self.model, self.adversary = with_grain(tokenizer, grain), Adversary()
        self.spectral, self.fooling, self.errors = spectral, fooling, Errors()
        self.optimiser = torch.optim.AdamW(self.model.decoder.parameters(), lr=RATE, betas=(0.9, 0.95))

    def train(self, scenes: list[Scene], things: float, spent: float) -> dict[str, float]:
        """One step. things: what a pixel of theirs counts; spent: share of the minutes."""
        (pixels, told), weight = views(scenes), boxes(scenes, things)
        set_rate([self.optimiser], RATE * min(1.0, spent / 0.02 + 0.01) * annealed(spent))
        self.model.train()
        with mixed():
            with torch.no_grad():
                codes = self.model.encode(told)
            decoded = self.model.decode(codes)
        self.model.eval()
        decoded = decoded.float()
        self.errors.see(decoded, pixels, scenes)
        bands = bands_apart(decoded, pixels)
        loss = wanted = apart(decoded, pixels, weight) + self.spectral * bands
        figures = {"loss": wanted.item(), "bands": bands.item()}
        if self.fooling:
            pull, figures["critic"] = self.adversary.pull(pixels, decoded, grounds(weight), wanted, self.model.last)
            loss = wanted + self.fooling * pull
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.decoder.parameters(), 1.0)
        self.optimiser.step()
        return figures


def run(
    tokenizer: Path, out: Path, minutes: float, grain: int = 16, seed: int = 0, rows: int = 8,
    things: float = THINGS, spectral: float = SPECTRAL, fooling: float = FOOLING,
) -> None:  # fmt: skip
    """Train the decoder of `tokenizer` for `minutes`; the tokenizer that has it is in `out`, now and then anew."""
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    task, scenes = Decoding(VQTokenizer.from_folder(tokenizer), grain, spectral, fooling), Scenes(EVERYTHING, (seed, 1))
    validation, clock = held_out(EVERYTHING), Clock()
    budget, step, spent = minutes * 60, 0, 0.0
    while spent < budget:
        figures = task.train(scenes.draw(rows, task.errors.chances), things, spent / budget)
        spent, step = clock.spent(), step + 1
        if step % TELL_EVERY == 0:
            tell(spent, step, figures, psnr(task.model, validation))
        if step % KEEP_EVERY == 0:
            save(task.model, out)
    save(task.model, out)
    measure(task.model, EVERYTHING, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
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
