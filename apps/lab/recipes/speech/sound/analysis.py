"""Analysis of rendered speech by WORLD: the targets of a codec's decoder (needs pyworld, only for training).

    for path in measure_many(shards, Path("runs/tiny-speech/analysed"), workers=2): ...

A shard is safetensors, so that training reads pieces of it from disk: audio, and 73 bytes per frame of 5 ms.
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

from polydraft.apps.lab.recipes.speech.corpus.data import load_shard
from polydraft.apps.lab.recipes.speech.corpus.flite import VOICES
from polydraft.modalities.output import write_tensors
from polydraft.modalities.speech.codecs.tiny import FRAMES_PER_CODE, REFERENCE_PITCH, SAMPLES_PER_CODE
from polydraft.modalities.speech.codecs.vocoder import (
    FFT,
    HOP,
    NOISE_BANDS,
    SAMPLE_RATE,
    band_centres,
    interpolation_matrix,
)
from polydraft.modalities.speech.text.lexicon import SYMBOLS, sentence_symbols

QUIET = 1e-9  # power; what is below is silence
LOWEST, HIGHEST = -21.0, 4.0  # log power of an envelope that a byte can say, in steps of 0.4 dB


def analyse(sound: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Analyse audio [S] in -1..1 at 16 kHz, a frame every 5 ms.

    It uses WORLD (Morise et al. 2016): DIO, StoneMask, CheapTrick, D4C.

    Returns:
        tuple: pitch [F] in Hz (interpolated in unvoiced frames), voiced [F] bool, envelope [F, 64], noise [F, 5].
    """
    import pyworld

    sound = np.asarray(sound, np.float64)
    coarse, times = pyworld.dio(sound, SAMPLE_RATE, f0_floor=60, f0_ceil=400, frame_period=1000 * HOP / SAMPLE_RATE)
    pitch = pyworld.stonemask(sound, coarse, times, SAMPLE_RATE)
    envelope = np.log(pyworld.cheaptrick(sound, pitch, times, SAMPLE_RATE, fft_size=FFT) + QUIET)
    noise = pyworld.d4c(sound, pitch, times, SAMPLE_RATE, fft_size=FFT) ** 2
    voiced = pitch > 0
    noise[~voiced] = 1
    voiced_frames = np.flatnonzero(voiced)
    pitch = (
        np.interp(np.arange(len(pitch)), voiced_frames, pitch[voiced_frames])
        if len(voiced_frames)
        else np.full(len(pitch), REFERENCE_PITCH)
    )
    return pitch, voiced, envelope @ band_averages(band_centres()), noise @ band_averages(NOISE_BANDS)


def band_averages(middles: torch.Tensor) -> np.ndarray:
    """Return weights [FFT/2 + 1, P] of means under the triangles that `between` interpolates with."""
    weights = interpolation_matrix(middles)
    return (weights / weights.sum(1, keepdim=True)).T.double().numpy()


def quantise_bytes(x: Tensor, lowest: float, highest: float) -> Tensor:
    """Quantise to 256 steps from `lowest` to `highest`, uint8."""
    return ((x - lowest) / (highest - lowest) * 255).round().clamp(0, 255).to(torch.uint8)


def dequantise_bytes(x: Tensor, lowest: float, highest: float) -> Tensor:
    return x.float() * ((highest - lowest) / 255) + lowest


def analyse_shard(shard: Path, out: Path) -> Path:
    """Write the audio of a shard's utterances in whole codes, concatenated, and the targets of every frame.

    An existing file is kept. It holds sound [S] int16; pitch [F] fp16, log over the middle; voiced [F] bool; envelope
    [F, 64] and noise [F, 5] in bytes; phones [F] uint8, indices in SYMBOLS of the spoken symbol; counts and voices [N],
    the number of codes of every utterance and its voice.
    """
    if out.exists():
        return out
    sound, parts, phones, counts, voices = [], [], [], [], []
    for utterance in load_shard(shard):
        codes = len(utterance.samples) // SAMPLES_PER_CODE
        analysis = analyse(utterance.samples / 32768)
        sound.append(utterance.samples[: codes * SAMPLES_PER_CODE])
        parts.append([one[: codes * FRAMES_PER_CODE] for one in analysis])
        counts.append(codes)
        voices.append(VOICES.index(utterance.voice))
        middles = (np.arange(codes * FRAMES_PER_CODE) + 0.5) * HOP / SAMPLE_RATE
        symbol_indices = np.array([SYMBOLS.index(symbol) for symbol in sentence_symbols(utterance.sentence)], np.uint8)
        phones.append(
            symbol_indices[
                np.searchsorted(utterance.times[:, 1], middles, side="right").clip(max=len(symbol_indices) - 1)
            ]
        )
    pitch, voiced, envelope, noise = (torch.from_numpy(np.concatenate(side)) for side in zip(*parts, strict=True))
    tensors = {
        "sound": torch.from_numpy(np.concatenate(sound)), "pitch": (pitch / REFERENCE_PITCH).log().half(),
        "voiced": voiced,
        "envelope": quantise_bytes(envelope, LOWEST, HIGHEST), "noise": quantise_bytes(noise, 0.0, 1.0),
        "phones": torch.from_numpy(np.concatenate(phones)), "counts": torch.tensor(counts),
        "voices": torch.tensor(voices),
    }  # fmt: skip
    write_tensors(out, tensors)
    return out


def analyse_shards(shards: Sequence[Path], folder: Path, workers: int = 1) -> Iterator[Path]:
    """Analyse `shards` into `folder`, in order; existing files are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    outs = [(folder / shard.name).with_suffix(".safetensors") for shard in shards]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=functools.partial(os.nice, 19)) as pool:
        yield from pool.map(analyse_shard, shards, outs)
