"""Train the speech codec.

    python -m polydraft.apps.train.speech.sound.codec --speech runs/tiny-speech/analysed --out …

The decoder learns, through codes, what WORLD measured in the rendered speech (pitch, envelope, noise), and with some of
every batch what that sounds like through the vocoder. The learning rate follows the clock, so any budget ends annealed;
the same command goes on with a run that was stopped. `--decoder` keeps the codes of a codec that is done and trains its
decoder for as long again.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.apps.train.checkpoint import Curve, known, save, save_curve, steps
from polydraft.apps.train.clock import Clock
from polydraft.apps.train.optimise import apply, descent, muon_and_adamw, set_rate
from polydraft.apps.train.speech.corpus.flite import VOICES
from polydraft.apps.train.speech.sound.measured import Measured, Piece
from polydraft.apps.train.speech.sound.spectra import DECIBEL, rendered, spectral_distance
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.precision import mixed
from polydraft.modalities.speech.codecs.tiny import FRAMES, MIDDLE, CodecConfig, SpeechCodec
from polydraft.modalities.speech.codecs.vocoder import HOP, Frames
from polydraft.modalities.speech.text.lexicon import SYMBOLS

ROWS, CODES = 32, 64  # a batch
HEARD = 8  # rows of it whose sound is rendered
EDGES = 0.15  # of the pieces begin where their utterance does, and as many end there
HELD_OUT = 40  # utterances
QUIET, LOUD = -14.0, -9.0  # log power of a frame's loudest band; its error counts from LEAST to 1 in between
LEAST = 0.3
RATE = 2e-3
JUDGE_EVERY = 200  # steps
WEIGHTS = {
    "slow": 1.0, "pitch": 10.0, "envelope": 1.0, "contrast": 0.5, "phones": 0.5, "noise": 4.0, "spectrum": 0.5,
}  # fmt: skip
SLOW = (0.25, 1.0, 1.0, 1.0)  # by voice: what the first says is understood worse for it (2.5 cost it .09 word errors)
OFTEN = (5, 1, 1, 1)  # by voice, how often a decoder alone learns from it: the first loses most through codes
CONFIG = CodecConfig(view=3)


def losses(codec: SpeechCodec, phonetician: nn.Linear, piece: Piece, slow: Tensor) -> dict[str, Tensor]:
    """Errors a frame that counts: pitch in octaves (voiced frames), envelope and its contrast in dB, noise share,
    phones in nats, spectrum in dB (`spectra`, of HEARD rows).

    Contrast is how much every band varies in time: what is uncertain is learnt as its mean, and a mean sounds muffled
    (Toda and Tokuda 2007, global variance). Phones, told from what the decoder understands, keep codes apart that look
    alike and mean different sounds, as semantic distillation does (Zhang et al. 2024, SpeechTokenizer). Slow is how far
    a code's point moves until the next one, times `slow` `[voices]` (Wiskott and Sejnowski 2002, slow feature
    analysis): codes that change only when the sound does are easier to predict, for the target and more so for its
    drafters.
    """
    with mixed():
        points = codec.points(piece.sound)
        understood = codec.understood(codec.rounded(points), piece.voice)
        phones = phonetician(understood).unflatten(-1, (FRAMES, -1)).flatten(1, 2).float()
    frames, true, judged = codec.frames(understood.float()), piece.frames, piece.judged
    loud = ((true.envelope.amax(-1) - QUIET) / (LOUD - QUIET)).clamp(LEAST, 1) * judged
    voiced = (piece.voiced * loud + 0.02) * judged
    moved = (points[:, 1:] - points[:, :-1]).abs().mean((1, 2))
    heard = Frames(frames.pitch[:HEARD], frames.envelope[:HEARD], frames.noise[:HEARD])

    def mean(error: Tensor, weight: Tensor) -> Tensor:
        return (error * weight).sum() / weight.sum()

    def contrast(x: Tensor) -> Tensor:
        weight = loud[..., None]
        middle = (x * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
        return (((x - middle).square() * weight).sum(1) / weight.sum(1) + 1e-6).sqrt()

    return {
        "slow": (moved * slow[piece.voice]).mean(),
        "pitch": mean(((frames.pitch / MIDDLE).log() - true.pitch).abs(), voiced) / math.log(2),
        "envelope": mean((frames.envelope - true.envelope).abs().mean(-1), loud) * DECIBEL,
        "contrast": (contrast(frames.envelope) - contrast(true.envelope)).abs().mean() * DECIBEL,
        "phones": mean(F.cross_entropy(phones.transpose(1, 2), piece.phones, reduction="none"), judged),
        "noise": mean((frames.noise - true.noise).abs().mean(-1), loud),
        "spectrum": spectral_distance(
            rendered(heard, true.pitch[:HEARD]), piece.sound[:HEARD, : HOP * judged.shape[1]], judged[:HEARD]
        ),
    }  # fmt: skip


def bits(codec: SpeechCodec, codes: Tensor) -> float:
    """What the axes of a code hold, each given itself in the code before: codes `[B, T]`."""
    total = 0.0
    for axis, levels in enumerate(codec.config.levels):
        steps_of = codes // codec.strides[axis] % levels
        both = torch.bincount((steps_of[:, :-1] * levels + steps_of[:, 1:]).flatten(), minlength=levels**2).double()
        total += entropy(both) - entropy(both.view(levels, levels).sum(1))
    return total


def entropy(counts: Tensor) -> float:
    """Bits."""
    share = counts[counts > 0] / counts.sum()
    return -float((share * share.log2()).sum())


def open_codec(out: Path, config: CodecConfig, decoder: bool) -> SpeechCodec:
    """A new codec, the one in `out`, or that one with codes that stay."""
    if not (out / "config.json").exists():
        if decoder:
            raise InvalidArgument(f"{out} holds no codec whose decoder could be trained; train one without --decoder.")
        return SpeechCodec(config)
    codec = SpeechCodec.from_folder(out).float().train()
    codec.encoder.requires_grad_(not decoder)
    return codec


def keep(codec: SpeechCodec, out: Path, name: str, curve: Curve) -> None:
    save(codec, out)
    save_curve(curve, out, name)


def run(
    speech: Path, out: Path, minutes: float, seed: int = 0, config: CodecConfig = CONFIG,
    slow: Sequence[float] = SLOW, decoder: bool = False, often: Sequence[int] = (1,),
) -> None:  # fmt: skip
    """Train for `minutes` in all, of which a run that was stopped may have spent some, and leave the codec in `out`.

    slow: weight of slowness, one for all voices or one each. decoder: the decoder alone, in minutes of its own.
    often: how many times as often a voice is learned from, one for all or one each.
    """
    out.mkdir(parents=True, exist_ok=True)
    name = "decoder.json" if decoder else "curve.json"
    curve, budget = known(out, name), minutes * 60
    spent = curve[-1]["seconds"] if curve else 0.0
    if spent >= budget:
        print(f"{out} has had its {minutes:g} minutes", flush=True)
        return
    torch.manual_seed(seed + steps(curve))
    rng, data = np.random.default_rng([seed, steps(curve)]), Measured(speech)
    usable = np.flatnonzero(data.counts >= CODES)
    held, train = np.split(usable, [max(1, min(HELD_OUT, len(usable) // 10))])
    train = np.repeat(train, each_voice(often)[data.voices[train]].numpy())
    codec = open_codec(out, config, decoder)
    phonetician = nn.Linear(codec.config.width, FRAMES * len(SYMBOLS))
    weights = each_voice(slow)
    size, spoken = sum(p.numel() for p in codec.parameters()) / 1e6, data.counts.sum() / 50 / 60
    print(f"{size:.2f}M parameters, {spoken:.0f} minutes of speech, {spent / 60:.0f} minutes trained", flush=True)
    optimisers = [*muon_and_adamw(codec), torch.optim.AdamW(phonetician.parameters(), lr=1.0)]
    clock, step, before, elapsed = Clock(spent), 0, steps(curve), spent
    parts: dict[str, Tensor] = {}
    while elapsed < budget:
        set_rate(optimisers, RATE * descent(elapsed / budget, step))
        parts = losses(codec, phonetician, data.draw(rng, train, ROWS, CODES, EDGES), weights)
        loss = weighted(parts)
        loss.backward()
        apply(optimisers, codec)
        step, elapsed = step + 1, clock.spent()
        if step % JUDGE_EVERY == 0 or elapsed >= budget:
            told = judge(codec, phonetician, data, held, weights)
            place = {"seconds": round(elapsed, 1), "step": before + step, "train": loss.item()}
            curve.append(place | {"held_out": told.pop("loss")} | told)
            each = " ".join(f"{name} {value:.3f}" for name, value in curve[-1].items())
            print(each, flush=True)
            keep(codec, out, name, curve)


def each_voice(values: Sequence[float]) -> Tensor:
    """One value a voice, of as many or of one for all."""
    return torch.tensor(values if len(values) > 1 else [*values] * len(VOICES))


def weighted(parts: dict[str, Tensor]) -> Tensor:
    return torch.stack([WEIGHTS[name] * part for name, part in parts.items()]).sum()


@torch.no_grad()
def judge(
    codec: SpeechCodec, phonetician: nn.Linear, data: Measured, held: np.ndarray, slow: Tensor
) -> dict[str, float]:
    """Losses of utterances that nothing is trained on, from their starts; bits a code, and how many codes they use."""
    piece = data.pieces(held, np.zeros(len(held), int), CODES)
    parts = losses(codec, phonetician, piece, slow)
    codes = codec.encode(piece.sound)
    told = {"loss": weighted(parts).item()} | {name: part.item() for name, part in parts.items()}
    return told | {"bits": bits(codec, codes), "codes": float(codes.unique().numel())}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--decoder", action="store_true", help="keep the codes, train the decoder alone")
    parser.add_argument("--slow", type=float, nargs="+", default=SLOW, help=f"for all, or for {' '.join(VOICES)}")
    parser.add_argument("--often", type=int, nargs="+", default=(1,), help=f"for all, or for {' '.join(VOICES)}")
    parser.add_argument("--levels", type=int, nargs="+", default=CONFIG.levels, help="grid points of every axis, odd")
    parser.add_argument("--view", type=int, default=CONFIG.view, help="codes an encoder block hears on either side")
    args = vars(parser.parse_args())
    shape = replace(CONFIG, levels=tuple(args.pop("levels")), view=args.pop("view"))
    run(**args, config=shape)
