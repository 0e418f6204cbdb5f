"""Train the speech codec: `python -m polydraft.apps.train.speech.codec --speech runs/tiny-speech/analysed --out …`.

The decoder learns what WORLD measured in the rendered speech (pitch, envelope, noise), through codes; no vocoder runs
while training. The learning rate follows the clock, so any budget ends annealed.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.apps.train.checkpoint import save
from polydraft.apps.train.optimise import apply, descent, muon_and_adamw, set_rate
from polydraft.modalities.speech.codecs.tiny import FRAMES, MIDDLE, SAMPLES, CodecConfig, SpeechCodec
from polydraft.modalities.speech.text.lexicon import SYMBOLS

ROWS, CODES = 32, 64  # a batch
MARGIN = 4  # codes at both ends of a piece that are heard but not judged: their neighbours are missing
HELD_OUT = 40  # utterances
QUIET, LOUD = -14.0, -9.0  # log power of a frame's loudest band; its error counts from LEAST to 1 in between
LEAST = 0.3
RATE = 2e-3
WEIGHTS = {"slow": 2.5, "pitch": 10.0, "envelope": 1.0, "contrast": 0.5, "phones": 0.5, "noise": 4.0}
DECIBEL = 10 / math.log(10)


@dataclass(frozen=True)
class Speech:
    """Analysed utterances, end to end. sound: `[S]` int16; starts: `[N]` their first codes, counts: `[N]` how many.

    targets: `[F, 71]` log of pitch over the middle, voiced, envelope, noise.
    """

    sound: Tensor
    targets: Tensor
    phones: Tensor
    voices: Tensor
    starts: np.ndarray
    counts: np.ndarray

    @staticmethod
    def load(folder: Path) -> Speech:
        parts = [np.load(path) for path in sorted(folder.glob("*.npz"))]
        counts = np.concatenate([part["lengths"] for part in parts]) // SAMPLES
        return Speech(
            torch.from_numpy(np.concatenate([part["audio"] for part in parts])),
            torch.from_numpy(np.concatenate([part["params"] for part in parts])),
            torch.from_numpy(np.concatenate([part["phones"] for part in parts])),
            torch.from_numpy(np.concatenate([part["voices"] for part in parts])), np.cumsum(counts) - counts, counts,
        )  # fmt: skip

    def pieces(self, rows: np.ndarray, first: np.ndarray, codes: int) -> Piece:
        """From code `first` of utterances `rows`."""
        begin = torch.from_numpy(self.starts[rows] + first)[:, None]
        sound = self.sound[begin * SAMPLES + torch.arange(codes * SAMPLES)].float() / 32768
        frames = begin * FRAMES + torch.arange(codes * FRAMES)
        voice = self.voices[torch.from_numpy(rows)]
        return Piece(sound, self.targets[frames].float(), self.phones[frames].long(), voice)


class Piece(NamedTuple):
    """sound: `[B, 320 T]`; targets: `[B, 4 T, 71]`; phones: `[B, 4 T]`; voice: `[B]`."""

    sound: Tensor
    targets: Tensor
    phones: Tensor
    voice: Tensor


def losses(codec: SpeechCodec, phonetician: nn.Linear, piece: Piece) -> dict[str, Tensor]:
    """Errors a frame: pitch in octaves (voiced frames), envelope and its contrast in dB, noise share, phones in nats.

    Contrast is how much every band varies in time: what is uncertain is learnt as its mean, and a mean sounds muffled
    (Toda and Tokuda 2007, global variance). Phones, told from what the decoder understands, keep codes apart that look
    alike and mean different sounds, as semantic distillation does (Zhang et al. 2024, SpeechTokenizer). Slow is how far
    a code's point moves until the next one (Wiskott and Sejnowski 2002, slow feature analysis): codes that change only
    when the sound does are easier to predict, for the target and more so for its drafters.
    """
    with torch.autocast("cpu", torch.bfloat16):
        points = codec.points(piece.sound)
        understood = codec.understood(codec.rounded(points), piece.voice)
        frames = codec.frames(understood)
        phones = phonetician(understood).unflatten(-1, (FRAMES, -1)).flatten(1, 2).float()
    targets = piece.targets
    inner = slice(MARGIN * FRAMES, -MARGIN * FRAMES)
    sizes = [1, 1, frames.envelope.shape[-1], frames.noise.shape[-1]]
    pitch, voiced, envelope, noise = targets[:, inner].split(sizes, -1)
    loud = ((envelope.amax(-1, keepdim=True) - QUIET) / (LOUD - QUIET)).clamp(LEAST, 1)
    heard = voiced[..., 0] * loud[..., 0] + 0.02

    def contrast(x: Tensor) -> Tensor:
        mean = (x * loud).sum(1, keepdim=True) / loud.sum(1, keepdim=True)
        return (((x - mean).square() * loud).sum(1) / loud.sum(1)).sqrt()

    log_pitch = (frames.pitch[:, inner] / MIDDLE).log() - pitch[..., 0]
    return {
        "slow": (points[:, 1:] - points[:, :-1]).abs().mean(),
        "pitch": (log_pitch.abs() * heard).sum() / heard.sum() / math.log(2),
        "envelope": ((frames.envelope[:, inner] - envelope).abs() * loud).mean() / loud.mean() * DECIBEL,
        "contrast": (contrast(frames.envelope[:, inner]) - contrast(envelope)).abs().mean() * DECIBEL,
        "phones": F.cross_entropy(phones[:, inner].transpose(1, 2), piece.phones[:, inner]),
        "noise": ((frames.noise[:, inner] - noise).abs() * loud).mean() / loud.mean(),
    }


def run(speech: Path, out: Path, minutes: float, seed: int = 0, config: CodecConfig | None = None) -> None:
    """Train for `minutes` and leave the codec in `out`; one found there keeps its codes, and its decoder learns on."""
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    rng, data = np.random.default_rng(seed), Speech.load(speech)
    usable = np.flatnonzero(data.counts >= CODES)
    train, held = usable[:-HELD_OUT], usable[-HELD_OUT:]
    if (out / "config.json").exists():
        codec = SpeechCodec.from_folder(out).float().train()
        codec.encoder.requires_grad_(False)
    else:
        codec = SpeechCodec(config or CodecConfig())
    phonetician = nn.Linear(codec.config.width, FRAMES * len(SYMBOLS))
    size = sum(p.numel() for p in codec.parameters()) / 1e6
    print(f"{size:.2f}M parameters, {data.counts.sum() / 50 / 60:.0f} minutes of speech", flush=True)
    optimisers = [*muon_and_adamw(codec), torch.optim.AdamW(phonetician.parameters(), lr=1.0)]
    begun, step, budget = time.monotonic(), 0, minutes * 60
    while (elapsed := time.monotonic() - begun) < budget:
        set_rate(optimisers, RATE * descent(elapsed / budget, step))
        rows = rng.choice(train, ROWS)
        parts = losses(codec, phonetician, data.pieces(rows, rng.integers(0, data.counts[rows] - CODES + 1), CODES))
        loss = torch.stack([WEIGHTS[name] * part for name, part in parts.items()]).sum()
        loss.backward()
        apply(optimisers, codec)
        step += 1
        if step % 200 == 0:
            with torch.no_grad():
                piece = data.pieces(held, np.zeros(len(held), int), CODES)
                told = {name: round(value.item(), 4) for name, value in losses(codec, phonetician, piece).items()}
                used = codec.encode(piece.sound).unique().numel()
            print(f"{elapsed:6.0f}s step {step} loss {loss.item():.3f} held out {told} codes {used}", flush=True)
            save(codec, out)
    save(codec, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=0)
    run(**vars(parser.parse_args()))
