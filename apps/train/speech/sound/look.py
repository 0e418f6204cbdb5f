"""A picture of what a codec does to speech.

    python -m polydraft.apps.train.speech.sound.look --codec runs/tiny-speech/codec -o look.png

A sentence of each kind, voices in turn: flite above, through the codec below, with the level of the first 30 ms.
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
from polydraft.modalities.speech.codecs.tiny import SpeechCodec
from polydraft.modalities.speech.corpus.sentences import held_out

Sound = NDArray[np.float32]
FIRST = 0.03  # seconds
FFT, HOP, LOWEST = 512, 80, -140  # samples, samples, dB a hertz


def level(sound: Sound) -> float:
    """dBFS."""
    return float(10 * np.log10(np.square(sound, dtype=np.float64).mean() + 1e-12))


def draw(folder: Path, out: Path, kinds: tuple[str, ...] = KINDS) -> None:
    codec = SpeechCodec.from_folder(folder)
    figure = Figure(figsize=(12, 3.6 * len(kinds)), layout="constrained")
    axes = figure.subplots(2 * len(kinds), 1, squeeze=False)[:, 0]
    for place, kind in enumerate(kinds):
        [text], voice = held_out(1, kind), VOICES[place % len(VOICES)]
        sound = rendered([text], [voice])[text, voice]
        through = codec.decode(codec.encode(torch.from_numpy(sound)[None])[0], VOICES.index(voice)).numpy()
        for row, (name, heard) in enumerate((("flite", sound), ("codec", through))):
            begins = level(heard[: int(FIRST * SAMPLE_RATE)])
            shown = axes[2 * place + row]
            shown.specgram(heard + 1e-6, NFFT=FFT, Fs=SAMPLE_RATE, noverlap=FFT - HOP, vmin=LOWEST, cmap="magma")
            said = text.replace("$", r"\$")  # a pair of them would be a formula
            shown.set_title(f"{name}, {voice}, begins at {begins:.0f} dBFS: {said}", fontsize=8, loc="left")
            print(f"{kind} {voice} {name}: first 30 ms {begins:.1f} dBFS, all {level(heard):.1f} dBFS", flush=True)
    figure.savefig(out, dpi=80)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codec", type=Path, required=True)
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    draw(args.codec, args.out)
