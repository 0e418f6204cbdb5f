"""Train the speech codec.

    python -m polydraft.apps.lab.recipes.speech.sound.codec --speech runs/tiny-speech/analysed --out …

The decoder learns to predict from codes the analysis of the rendered speech by WORLD (pitch, envelope, noise), and for
a part of every batch its audio through the vocoder. The learning rate follows the clock, so any budget ends annealed;
the same command resumes an interrupted run. `--decoder` keeps the codes of a finished codec and trains its decoder for
as long again.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.apps.lab.recipes.speech.corpus.flite import VOICES
from polydraft.apps.lab.recipes.speech.sound.analysed_speech import AnalysedSpeech, SpeechPiece
from polydraft.apps.lab.recipes.speech.sound.spectra import DECIBEL, render_frames, spectral_distance
from polydraft.apps.lab.training.checkpoint import Curve, load_curve, num_steps, save, save_curve
from polydraft.apps.lab.training.clock import Clock
from polydraft.apps.lab.training.optimizer import apply_gradients, linear_decay, muon_and_adamw, set_rate
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.precision import mixed_precision
from polydraft.modalities.speech.codecs.tiny import FRAMES_PER_CODE, REFERENCE_PITCH, CodecConfig, SpeechCodec
from polydraft.modalities.speech.codecs.vocoder import HOP, VocoderFrames
from polydraft.modalities.speech.text.lexicon import SYMBOLS

ROWS, CODES = 32, 64  # pieces per batch, and codes per piece
HEARD = 8  # pieces of a batch whose audio is rendered
EDGES = 0.15  # share of pieces at the start of their utterance, and of pieces at its end
HELD_OUT = 40  # utterances
QUIET, LOUD = -14.0, -9.0  # log power of a frame's loudest band; its error counts from LEAST to 1 in between
LEAST = 0.3
RATE = 2e-3
JUDGE_EVERY = 200  # steps
WEIGHTS = {
    "slow": 1.0, "pitch": 10.0, "envelope": 1.0, "contrast": 0.5, "phones": 0.5, "noise": 4.0, "spectrum": 0.5,
}  # fmt: skip
SLOW = (0.25, 1.0, 1.0, 1.0)  # by voice: it makes the first less intelligible (2.5 cost it .09 word errors)
OFTEN = (5, 1, 1, 1)  # sampling weight by voice for a decoder alone: the first loses most by encoding
CONFIG = CodecConfig(view=3)


def losses(codec: SpeechCodec, phone_head: nn.Linear, piece: SpeechPiece, slow: Tensor) -> dict[str, Tensor]:
    """Return losses by name, per frame that counts.

    They are pitch in octaves (voiced frames), envelope and its contrast in dB, noise share, phones in nats, and
    spectrum in dB (`spectra.py`, of `HEARD` rows). Contrast is the variation of every band in time: uncertain values
    are learned as their mean, and a mean sounds muffled (Toda and Tokuda 2007, global variance). Phones, predicted from
    the decoder's hidden states, separate codes that look similar and mean different sounds, as semantic distillation
    does (Zhang et al. 2024, SpeechTokenizer). Slow is the distance of consecutive points, times `slow` [voices]
    (Wiskott and Sejnowski 2002, slow feature analysis): codes that change only when the sound does are easier to
    predict, for the target and more so for its drafters.
    """
    with mixed_precision():
        points = codec.encode_points(piece.sound)
        hidden = codec.decoder_output(codec.quantise(points), piece.voice)
        phones = phone_head(hidden).unflatten(-1, (FRAMES_PER_CODE, -1)).flatten(1, 2).float()
    frames, true, judged = codec.vocoder_frames(hidden.float()), piece.frames, piece.judged
    loud = ((true.envelope.amax(-1) - QUIET) / (LOUD - QUIET)).clamp(LEAST, 1) * judged
    voiced = (piece.voiced * loud + 0.02) * judged
    distance = (points[:, 1:] - points[:, :-1]).abs().mean((1, 2))
    audible = VocoderFrames(frames.pitch[:HEARD], frames.envelope[:HEARD], frames.noise[:HEARD])

    def mean(error: Tensor, weight: Tensor) -> Tensor:
        return (error * weight).sum() / weight.sum()

    def contrast(x: Tensor) -> Tensor:
        weight = loud[..., None]
        middle = (x * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
        return (((x - middle).square() * weight).sum(1) / weight.sum(1) + 1e-6).sqrt()

    return {
        "slow": (distance * slow[piece.voice]).mean(),
        "pitch": mean(((frames.pitch / REFERENCE_PITCH).log() - true.pitch).abs(), voiced) / math.log(2),
        "envelope": mean((frames.envelope - true.envelope).abs().mean(-1), loud) * DECIBEL,
        "contrast": (contrast(frames.envelope) - contrast(true.envelope)).abs().mean() * DECIBEL,
        "phones": mean(F.cross_entropy(phones.transpose(1, 2), piece.phones, reduction="none"), judged),
        "noise": mean((frames.noise - true.noise).abs().mean(-1), loud),
        "spectrum": spectral_distance(
            render_frames(audible, true.pitch[:HEARD]), piece.sound[:HEARD, : HOP * judged.shape[1]], judged[:HEARD]
        ),
    }  # fmt: skip


def conditional_bits(codec: SpeechCodec, codes: Tensor) -> float:
    """Return the sum of the entropies of a code's axes in bits, each given its previous value; `codes` is [B, T]."""
    total = 0.0
    for axis, levels in enumerate(codec.config.levels):
        steps_of = codes // codec.strides[axis] % levels
        both = torch.bincount((steps_of[:, :-1] * levels + steps_of[:, 1:]).flatten(), minlength=levels**2).double()
        total += entropy(both) - entropy(both.view(levels, levels).sum(1))
    return total


def entropy(counts: Tensor) -> float:
    """Return the entropy of counts in bits."""
    share = counts[counts > 0] / counts.sum()
    return -float((share * share.log2()).sum())


def load_or_create_codec(out: Path, config: CodecConfig, decoder: bool) -> SpeechCodec:
    """Return a new codec, or the one in `out`; with `decoder` its encoder is not trained."""
    if not (out / "config.json").exists():
        if decoder:
            raise InvalidArgument(f"{out} holds no codec whose decoder could be trained; train one without --decoder.")
        return SpeechCodec(config)
    codec = SpeechCodec.from_folder(out).float().train()
    codec.encoder.requires_grad_(not decoder)
    return codec


def save_checkpoint(codec: SpeechCodec, out: Path, name: str, curve: Curve) -> None:
    save(codec, out)
    save_curve(curve, out, name)


def run(
    speech: Path, out: Path, minutes: float, seed: int = 0, config: CodecConfig = CONFIG,
    slow: Sequence[float] = SLOW, decoder: bool = False, often: Sequence[int] = (1,),
) -> None:  # fmt: skip
    """Train for `minutes` in all, including an interrupted run, and save the codec to `out`.

    Args:
        speech (Path): folder of analysed speech.
        out (Path): folder of the codec.
        minutes (float): wall time.
        seed (int): seed of batches and weights.
        config (CodecConfig): configuration of a new codec.
        slow (Sequence[float]): weight of slowness, one for all voices or one each.
        decoder (bool): whether to train the decoder alone, in minutes of its own.
        often (Sequence[int]): sampling weight of voices, one for all or one each.
    """
    out.mkdir(parents=True, exist_ok=True)
    name = "decoder.json" if decoder else "curve.json"
    curve, budget = load_curve(out, name), minutes * 60
    spent = curve[-1]["seconds"] if curve else 0.0
    if spent >= budget:
        print(f"{out} has had its {minutes:g} minutes", flush=True)
        return
    torch.manual_seed(seed + num_steps(curve))
    rng, data = np.random.default_rng([seed, num_steps(curve)]), AnalysedSpeech(speech)
    usable = np.flatnonzero(data.counts >= CODES)
    held_out, train = np.split(usable, [max(1, min(HELD_OUT, len(usable) // 10))])
    train = np.repeat(train, per_voice(often)[data.voices[train]].numpy())
    codec = load_or_create_codec(out, config, decoder)
    phone_head = nn.Linear(codec.config.width, FRAMES_PER_CODE * len(SYMBOLS))
    weights = per_voice(slow)
    size, spoken = sum(p.numel() for p in codec.parameters()) / 1e6, data.counts.sum() / 50 / 60
    print(f"{size:.2f}M parameters, {spoken:.0f} minutes of speech, {spent / 60:.0f} minutes trained", flush=True)
    optimisers = [*muon_and_adamw(codec), torch.optim.AdamW(phone_head.parameters(), lr=1.0)]
    clock, step, before, elapsed = Clock(spent), 0, num_steps(curve), spent
    parts: dict[str, Tensor] = {}
    while elapsed < budget:
        set_rate(optimisers, RATE * linear_decay(elapsed / budget, step))
        parts = losses(codec, phone_head, data.sample_pieces(rng, train, ROWS, CODES, EDGES), weights)
        loss = weighted_sum(parts)
        loss.backward()
        apply_gradients(optimisers, codec)
        step, elapsed = step + 1, clock.spent()
        if step % JUDGE_EVERY == 0 or elapsed >= budget:
            metrics = evaluate(codec, phone_head, data, held_out, weights)
            point = {"seconds": round(elapsed, 1), "step": before + step, "train": loss.item()}
            curve.append(point | {"held_out": metrics.pop("loss")} | metrics)
            each = " ".join(f"{name} {value:.3f}" for name, value in curve[-1].items())
            print(each, flush=True)
            save_checkpoint(codec, out, name, curve)


def per_voice(values: Sequence[float]) -> Tensor:
    """Return a value per voice, from as many or from one for all."""
    return torch.tensor(values if len(values) > 1 else [*values] * len(VOICES))


def weighted_sum(parts: dict[str, Tensor]) -> Tensor:
    return torch.stack([WEIGHTS[name] * part for name, part in parts.items()]).sum()


@torch.no_grad()
def evaluate(
    codec: SpeechCodec, phone_head: nn.Linear, data: AnalysedSpeech, held_out: np.ndarray, slow: Tensor
) -> dict[str, float]:
    """Return losses of held-out utterances from their starts, bits per code, and the number of codes in use."""
    piece = data.pieces(held_out, np.zeros(len(held_out), int), CODES)
    parts = losses(codec, phone_head, piece, slow)
    codes = codec.encode(piece.sound)
    metrics = {"loss": weighted_sum(parts).item()} | {name: part.item() for name, part in parts.items()}
    return metrics | {"bits": conditional_bits(codec, codes), "codes": float(codes.unique().numel())}


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--decoder", action="store_true", help="keep the codes, train the decoder alone")
    parser.add_argument("--slow", type=float, nargs="+", default=SLOW, help=f"for all, or for {' '.join(VOICES)}")
    parser.add_argument("--often", type=int, nargs="+", default=(1,), help=f"for all, or for {' '.join(VOICES)}")
    parser.add_argument("--levels", type=int, nargs="+", default=CONFIG.levels, help="grid points of every axis, odd")
    parser.add_argument("--view", type=int, default=CONFIG.view, help="codes an encoder block hears on either side")
    args: dict[str, Any] = vars(parser.parse_args())
    shape: CodecConfig = replace(CONFIG, levels=tuple(args.pop("levels")), view=args.pop("view"))
    run(**args, config=shape)
