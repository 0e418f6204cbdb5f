"""Loudness of speech, and the table that brings every voice of a model to one.

    loudness(audio, 16_000)   # LUFS
    python -m polydraft.apps.bench.speech.loudness tiny-speech --write   # into the model's manifest

As ITU-R BS.1770-4 measures one channel: a shelf and a high-pass as the ear hears, mean power of blocks of .4 s, quiet
ones left out. The standard gives filters at 48 kHz only; for other rates they are designed from what De Man 2014
("Evaluation of implementations of the EBU R128 loudness measurement", AES 137) derives, which gives the same at 48 kHz.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

from polydraft.apps.bench.speech.likeness import Sound
from polydraft.apps.data.sentences.sentences import everyday_sentences
from polydraft.apps.measure.manifest import store
from polydraft.modalities.loading import load
from polydraft.modalities.manifest import MANIFEST
from polydraft.modalities.speech.loudness import LOUDNESS
from polydraft.modalities.speech.pipeline import SpeechPipeline

BLOCK, STEP = 0.4, 0.1  # seconds
OFFSET = -0.691  # LUFS of a mean square of 1
SILENCE, QUIETER = -70.0, -10.0  # gates: LUFS, and LU relative to what the first leaves
FEW = 12  # sentences a voice that a table is measured on


class Biquad(NamedTuple):
    """Coefficients of a filter of second order."""

    b: tuple[float, float, float]
    a: tuple[float, float, float]

    def response(self, unit: NDArray[np.complex128]) -> NDArray[np.complex128]:
        """At points z⁻¹ on the unit circle."""
        powers = np.stack([np.ones_like(unit), unit, unit**2])
        value: NDArray[np.complex128] = (np.array(self.b) @ powers) / (np.array(self.a) @ powers)
        return value


def shelf(sample_rate: int) -> Biquad:
    """Return the high shelf of BS.1770: 4 dB above 1.7 kHz, as the head adds."""
    middle, decibel, quality = 1681.974450955533, 3.999843853973347, 0.7071752369554196
    k = float(np.tan(np.pi * middle / sample_rate))
    high = 10 ** (decibel / 20)
    band = high**0.4996667741545416
    whole = 1 + k / quality + k * k
    return Biquad(
        ((high + band * k / quality + k * k) / whole, 2 * (k * k - high) / whole,
         (high - band * k / quality + k * k) / whole),
        (1.0, 2 * (k * k - 1) / whole, (1 - k / quality + k * k) / whole),
    )  # fmt: skip


def high_pass(sample_rate: int) -> Biquad:
    """Return the high-pass of BS.1770: below 40 Hz the ear hears little loudness."""
    middle, quality = 38.13547087602444, 0.5003270373238773
    k = float(np.tan(np.pi * middle / sample_rate))
    whole = 1 + k / quality + k * k
    return Biquad((1.0, -2.0, 1.0), (1.0, 2 * (k * k - 1) / whole, (1 - k / quality + k * k) / whole))


def weighted(audio: Sound, sample_rate: int) -> NDArray[np.float64]:
    """Filter `[S]` with both filters, as a product of spectra; a second of padding lets them ring out."""
    length = len(audio) + sample_rate
    spectrum = np.fft.rfft(np.asarray(audio, np.float64), length)
    unit = np.exp(-2j * np.pi * np.arange(len(spectrum)) / length)
    filtered = spectrum * shelf(sample_rate).response(unit) * high_pass(sample_rate).response(unit)
    return np.fft.irfft(filtered, length)[: len(audio)]


def loudness(audio: Sound, sample_rate: int) -> float:
    """Integrated loudness in LUFS; minus infinity of silence. Less than a block counts as one."""
    power = weighted(audio, sample_rate) ** 2
    block = min(round(BLOCK * sample_rate), len(power))
    sums = np.concatenate([[0.0], np.cumsum(power)])
    starts = np.arange(0, len(power) - block + 1, round(STEP * sample_rate))
    means = (sums[starts + block] - sums[starts]) / max(1, block)
    means = means[level(means) > SILENCE]
    if len(means):
        means = means[level(means) > level(means.mean()) + QUIETER]
    return float(level(means.mean())) if len(means) else -np.inf


def level(power: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
    return np.asarray(OFFSET + 10 * np.log10(np.maximum(power, 1e-20)))


def measure_loudness(pipe: SpeechPipeline, texts: list[str]) -> dict[str, float]:
    """Return the LUFS of every voice over all texts, before the model's loudness table is applied."""
    table = pipe.card.manifest.get("loudness", {})
    audio_by_voice = {voice: pipe(" ".join(texts), voice=voice).audio for voice in pipe.voices}
    return {
        voice: round(loudness(audio, pipe.sample_rate) - LOUDNESS + table.get(voice, LOUDNESS), 1)
        for voice, audio in audio_by_voice.items()
    }  # fmt: skip


def main(
    model: str,
    write: Annotated[bool, typer.Option("--write", help="Write the table into the model's manifest.")] = False,
    sentences: Annotated[int, typer.Option(min=1, max=100)] = FEW,
) -> None:
    """Measure how loud a speech model's voices are."""
    pipe = load(model, modality="speech")
    table = measure_loudness(pipe, everyday_sentences()[:sentences])
    print(json.dumps(table))
    if write:
        store(Path(pipe.card.path) / MANIFEST, {"loudness": table})


if __name__ == "__main__":
    typer.run(main)
