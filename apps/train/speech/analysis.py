"""What a rendered voice did, by WORLD: the targets a codec's decoder learns (needs pyworld, only to train)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from polydraft.apps.train.speech.data import load_shard
from polydraft.apps.train.speech.flite import VOICES
from polydraft.modalities.speech.codecs.tiny import FRAMES, MIDDLE, SAMPLES
from polydraft.modalities.speech.codecs.vocoder import FFT, HOP, NOISE_BANDS, SAMPLE_RATE, band_middles, between
from polydraft.modalities.speech.text.lexicon import SYMBOLS, symbols

QUIET = 1e-7  # power; what is below is silence


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


def measure(shard: Path, out: Path) -> None:
    """Sound of a shard's utterances in whole codes, end to end, with the targets of every frame.

    phones: `[F]` uint8, places in SYMBOLS of what is being said.
    """
    sound, targets, phones, voices = [], [], [], []
    for said in load_shard(shard):
        codes = len(said.samples) // SAMPLES
        pitch, voiced, envelope, noise = analyse(said.samples / 32768)
        parts = (np.log(pitch / MIDDLE)[:, None], voiced[:, None], envelope, noise)
        sound.append(said.samples[: codes * SAMPLES])
        targets.append(np.concatenate(parts, 1)[: codes * FRAMES].astype(np.float16))
        voices.append(VOICES.index(said.voice))
        middles = (np.arange(codes * FRAMES) + 0.5) * HOP / SAMPLE_RATE
        places = np.array([SYMBOLS.index(symbol) for symbol in symbols(said.sentence)], np.uint8)
        phones.append(places[np.searchsorted(said.times[:, 1], middles, side="right").clip(max=len(places) - 1)])
    np.savez(
        out, audio=np.concatenate(sound), lengths=np.array([len(one) for one in sound]), params=np.concatenate(targets),
        phones=np.concatenate(phones), voices=np.array(voices),
    )  # fmt: skip
