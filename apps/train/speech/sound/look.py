"""A picture of what a codec, and a model with it, makes of speech.

    python -m polydraft.apps.train.speech.sound.look --codec runs/tiny-speech/codec -o look.png
    python -m polydraft.apps.train.speech.sound.look --model tiny-speech -o look.png

A sentence of each kind, voices in turns: flite above, through the codec below and, of a model, what it says itself;
with the level of the first 30 ms.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from polydraft.apps.bench.speech.intelligibility import rendered
from polydraft.apps.train.speech.corpus.flite import SAMPLE_RATE, VOICES
from polydraft.apps.train.speech.sound.gate import KINDS
from polydraft.modalities.loading import load
from polydraft.modalities.speech.codecs.tiny import SpeechCodec
from polydraft.modalities.speech.corpus.sentences import held_out
from polydraft.modalities.speech.pipeline import SpeechPipeline

Sound = NDArray[np.float32]
FIRST = 0.03  # seconds
FFT, HOP, LOWEST = 512, 80, -140  # samples, samples, dB a hertz


def level(sound: Sound) -> float:
    """dBFS."""
    return float(10 * np.log10(np.square(sound, dtype=np.float64).mean() + 1e-12))


def stages(codec: SpeechCodec, pipe: SpeechPipeline | None, text: str, voice: str) -> dict[str, Sound]:
    """What is heard of a text, stage by stage."""
    sound = rendered([text], [voice])[text, voice].audio
    through = codec.decode(codec.encode(torch.from_numpy(sound)[None])[0], VOICES.index(voice)).numpy()
    found = {"flite": sound, "codec": through}
    return found if pipe is None else found | {pipe.card.name: pipe(text, voice=voice).audio}


def draw(codec: SpeechCodec, pipe: SpeechPipeline | None, out: Path, kinds: tuple[str, ...] = KINDS) -> None:
    heard = {(kind, VOICES[place % len(VOICES)]): held_out(1, kind)[0] for place, kind in enumerate(kinds)}
    rows = [
        (kind, voice, name, text, sound)
        for (kind, voice), text in heard.items() for name, sound in stages(codec, pipe, text, voice).items()
    ]  # fmt: skip
    figure = Figure(figsize=(12, 1.8 * len(rows)), layout="constrained")
    for shown, (kind, voice, name, text, sound) in zip(figure.subplots(len(rows), 1), rows, strict=True):
        begins = level(sound[: int(FIRST * SAMPLE_RATE)])
        shown.specgram(sound + 1e-6, NFFT=FFT, Fs=SAMPLE_RATE, noverlap=FFT - HOP, vmin=LOWEST, cmap="magma")
        said = text.replace("$", r"\$")  # a pair of them would be a formula
        shown.set_title(f"{name}, {voice}, begins at {begins:.0f} dBFS: {said}", fontsize=8, loc="left")
        print(f"{kind} {voice} {name}: first 30 ms {begins:.1f} dBFS, all {level(sound):.1f} dBFS", flush=True)
    figure.savefig(out, dpi=80)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    of = parser.add_mutually_exclusive_group(required=True)
    of.add_argument("--codec", type=Path, help="folder")
    of.add_argument("--model", help="embedded model or a model folder, with its codec")
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    speaks = None if args.model is None else load(args.model, modality="speech")
    draw(SpeechCodec.from_folder(args.codec if speaks is None else speaks.card.codec), speaks, args.out)
