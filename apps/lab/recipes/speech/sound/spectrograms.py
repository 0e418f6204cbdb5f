"""Plot spectrograms of speech through a codec, and of a model with it.

    python -m polydraft.apps.lab.recipes.speech.sound.spectrograms --codec runs/tiny-speech/codec -o look.png
    python -m polydraft.apps.lab.recipes.speech.sound.spectrograms --model tiny-speech -o look.png

A sentence of each kind, voices in turns: flite above, through the codec below and, of a model, its own speech, with the
level of the first 30 ms.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from polydraft.apps.data.sentences.sentences import held_out_sentences
from polydraft.apps.lab.bench.reference_speech import render_texts
from polydraft.apps.lab.recipes.speech.corpus.flite import SAMPLE_RATE, VOICES
from polydraft.apps.lab.recipes.speech.sound.gate import KINDS
from polydraft.modalities.loading import load
from polydraft.modalities.speech.codecs.tiny import SpeechCodec
from polydraft.modalities.speech.pipeline import SpeechPipeline

if TYPE_CHECKING:
    pass

Sound = NDArray[np.float32]
FIRST = 0.03  # seconds
FFT, HOP, LOWEST = 512, 80, -140  # samples, samples, dB a hertz


def level_dbfs(sound: Sound) -> float:
    """Return the level in dBFS."""
    return float(10 * np.log10(np.square(sound, dtype=np.float64).mean() + 1e-12))


def synthesis_stages(codec: SpeechCodec, pipe: SpeechPipeline | None, text: str, voice: str) -> dict[str, Sound]:
    """Synthesise a text by flite, through the codec and by the model; return audio by stage."""
    sound = render_texts([text], [voice])[text, voice].audio
    through = codec.decode(codec.encode(torch.from_numpy(sound)[None])[0], VOICES.index(voice)).numpy()
    audio = {"flite": sound, "codec": through}
    return audio if pipe is None else audio | {pipe.card.name: pipe(text, voice=voice).audio}


def plot_spectrograms(
    codec: SpeechCodec, pipe: SpeechPipeline | None, out: Path, kinds: tuple[str, ...] = KINDS
) -> None:
    texts = {(kind, VOICES[place % len(VOICES)]): held_out_sentences(1, kind)[0] for place, kind in enumerate(kinds)}
    rows = [
        (kind, voice, name, text, sound)
        for (kind, voice), text in texts.items() for name, sound in synthesis_stages(codec, pipe, text, voice).items()
    ]  # fmt: skip
    figure = Figure(figsize=(12, 1.8 * len(rows)), layout="constrained")
    for axes, (kind, voice, name, text, sound) in zip(figure.subplots(len(rows), 1), rows, strict=True):
        begins = level_dbfs(sound[: int(FIRST * SAMPLE_RATE)])
        axes.specgram(sound + 1e-6, NFFT=FFT, Fs=SAMPLE_RATE, noverlap=FFT - HOP, vmin=LOWEST, cmap="magma")
        title = text.replace("$", r"\$")  # a pair of them would be a formula
        axes.set_title(f"{name}, {voice}, begins at {begins:.0f} dBFS: {title}", fontsize=8, loc="left")
        print(f"{kind} {voice} {name}: first 30 ms {begins:.1f} dBFS, all {level_dbfs(sound):.1f} dBFS", flush=True)
    figure.savefig(out, dpi=80)


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    of: Any = parser.add_mutually_exclusive_group(required=True)
    of.add_argument("--codec", type=Path, help="folder")
    of.add_argument("--model", help="embedded model or a model folder, with its codec")
    parser.add_argument("-o", "--out", type=Path, required=True)
    args: argparse.Namespace = parser.parse_args()
    pipe: SpeechPipeline | None = None if args.model is None else load(args.model, modality="speech")
    plot_spectrograms(SpeechCodec.from_folder(args.codec if pipe is None else pipe.card.codec), pipe, args.out)
