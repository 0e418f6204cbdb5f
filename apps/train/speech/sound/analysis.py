"""What a rendered voice did, by WORLD: the targets a codec's decoder learns (needs pyworld, only to train).

    for path in measure_many(shards, Path("runs/tiny-speech/analysed"), workers=2): ...

A shard is safetensors, so that training reads pieces of it from disk: sound, and 73 bytes a frame of 5 ms.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polydraft.apps.train.speech.corpus.data import load_shard
from polydraft.apps.train.speech.corpus.flite import VOICES
from polydraft.modalities.output import write_tensors
from polydraft.modalities.speech.codecs.tiny import FRAMES, MIDDLE, SAMPLES
from polydraft.modalities.speech.codecs.vocoder import FFT, HOP, NOISE_BANDS, SAMPLE_RATE, band_middles, between
from polydraft.modalities.speech.text.lexicon import SYMBOLS, symbols

QUIET = 1e-9  # power; what is below is silence
LOWEST, HIGHEST = -21.0, 4.0  # log power of an envelope that a byte can say, in steps of 0.4 dB


def analyse(sound: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pitch `[F]` in Hz (through unvoiced sounds too), voiced `[F]` bool, envelope `[F, 64]`, noise `[F, 5]`.

    sound: `[S]` in -1..1 at 16 kHz; a frame every 5 ms (Morise et al. 2016, WORLD: DIO, StoneMask, CheapTrick, D4C).
    """
    import pyworld

    sound = np.asarray(sound, np.float64)
    coarse, times = pyworld.dio(sound, SAMPLE_RATE, f0_floor=60, f0_ceil=400, frame_period=1000 * HOP / SAMPLE_RATE)
    pitch = pyworld.stonemask(sound, coarse, times, SAMPLE_RATE)
    envelope = np.log(pyworld.cheaptrick(sound, pitch, times, SAMPLE_RATE, fft_size=FFT) + QUIET)
    noise = pyworld.d4c(sound, pitch, times, SAMPLE_RATE, fft_size=FFT) ** 2
    voiced = pitch > 0
    noise[~voiced] = 1
    heard = np.flatnonzero(voiced)
    pitch = np.interp(np.arange(len(pitch)), heard, pitch[heard]) if len(heard) else np.full(len(pitch), MIDDLE)
    return pitch, voiced, envelope @ averages(band_middles()), noise @ averages(NOISE_BANDS)


def averages(middles: torch.Tensor) -> np.ndarray:
    """`[FFT/2 + 1, P]`: means under the triangles that `between` spreads back."""
    weights = between(middles)
    return (weights / weights.sum(1, keepdim=True)).T.double().numpy()


def in_bytes(x: Tensor, lowest: float, highest: float) -> Tensor:
    """The nearest of 256 steps from `lowest` to `highest`, uint8."""
    return ((x - lowest) / (highest - lowest) * 255).round().clamp(0, 255).to(torch.uint8)


def from_bytes(x: Tensor, lowest: float, highest: float) -> Tensor:
    return x.float() * ((highest - lowest) / 255) + lowest


def measure(shard: Path, out: Path) -> Path:
    """Sound of a shard's utterances in whole codes, end to end, with the targets of every frame; kept if it is there.

    sound: `[S]` int16; pitch: `[F]` fp16, log over the middle; voiced: `[F]` bool; envelope: `[F, 64]` and noise:
    `[F, 5]` in bytes; phones: `[F]` uint8, places in SYMBOLS of what is being said; counts and voices: `[N]`, codes of
    every utterance and who says it.
    """
    if out.exists():
        return out
    sound, parts, phones, counts, voices = [], [], [], [], []
    for said in load_shard(shard):
        codes = len(said.samples) // SAMPLES
        found = analyse(said.samples / 32768)
        sound.append(said.samples[: codes * SAMPLES])
        parts.append([one[: codes * FRAMES] for one in found])
        counts.append(codes)
        voices.append(VOICES.index(said.voice))
        middles = (np.arange(codes * FRAMES) + 0.5) * HOP / SAMPLE_RATE
        places = np.array([SYMBOLS.index(symbol) for symbol in symbols(said.sentence)], np.uint8)
        phones.append(places[np.searchsorted(said.times[:, 1], middles, side="right").clip(max=len(places) - 1)])
    pitch, voiced, envelope, noise = (torch.from_numpy(np.concatenate(side)) for side in zip(*parts, strict=True))
    measured = {
        "sound": torch.from_numpy(np.concatenate(sound)), "pitch": (pitch / MIDDLE).log().half(), "voiced": voiced,
        "envelope": in_bytes(envelope, LOWEST, HIGHEST), "noise": in_bytes(noise, 0.0, 1.0),
        "phones": torch.from_numpy(np.concatenate(phones)), "counts": torch.tensor(counts),
        "voices": torch.tensor(voices),
    }  # fmt: skip
    write_tensors(out, measured)
    return out


def measure_many(shards: Sequence[Path], folder: Path, workers: int = 1) -> Iterator[Path]:
    """Measure `shards` into `folder`, in order; what is there already is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    outs = [(folder / shard.name).with_suffix(".safetensors") for shard in shards]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=functools.partial(os.nice, 19)) as pool:
        yield from pool.map(measure, shards, outs)
