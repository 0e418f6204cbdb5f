"""Audible defects besides words: clicks at starts and joins, pauses, loudness.

Levels are dBFS. A start is the first 30 ms of a text, a join the 30 ms around the seam of two parts of it; both lie
before a voice begins and should be silent. A pause is a silence of .1 s or more between the first and the last sound
of a sentence, sound being at -23 LUFS; most stops of consonants are shorter. Pause lengths are measured on as many of
the longest silences of a text as the renderer makes pauses there, however short. Loudness is ITU-R BS.1770.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polydraft.apps.bench.speech.likeness import Sound
from polydraft.apps.bench.speech.loudness import loudness
from polydraft.modalities.speech.loudness import loudness_gain

EDGE, FRAME = 0.03, 0.005  # seconds
QUIET = -45.0  # dBFS of a frame without a voice, at -23 LUFS
PAUSE = 0.1  # seconds, the shortest
FLOOR = -120.0  # dBFS; what is below is written so
HEADERS = ["voice", "LUFS", "peak dBFS", "start dBFS", "join dBFS", "pauses s", "flite's", "a pause s", "flite's"]


class SpokenText(NamedTuple):
    """Synthesised text: its audio, the samples where parts after the first begin, and whether it is one sentence."""

    audio: Sound
    seams: list[int]
    single: bool


class ReferenceSpeech(NamedTuple):
    """Text synthesised by the renderer, and the number of pauses inside."""

    audio: Sound
    pauses: int


def row(
    voice: str, spoken_texts: Sequence[SpokenText], reference: Sequence[ReferenceSpeech] | None, sample_rate: int
) -> dict[str, Any]:
    """reference: of the same texts, if there is one. Levels are the worst, pauses means a text, a pause is a mean."""
    edge = round(EDGE * sample_rate)
    joins = [
        level(one.audio[max(0, seam - edge // 2) : seam + edge // 2]) for one in spoken_texts for seam in one.seams
    ]  # fmt: skip
    singles = [index for index, one in enumerate(spoken_texts) if one.single]
    value = {
        "voice": voice, "loudness": loudness(np.concatenate([one.audio for one in spoken_texts]), sample_rate),
        "peak": decibel(max(float(np.abs(one.audio).max()) for one in spoken_texts)),
        "start": max(level(one.audio[:edge]) for one in spoken_texts), "join": max(joins, default=None),
    }  # fmt: skip
    made = None if reference is None else [reference[index].pauses for index in singles]
    value |= paused([spoken_texts[index].audio for index in singles], made, sample_rate, "")
    if reference is not None:
        value |= paused([reference[index].audio for index in singles], made, sample_rate, "reference_")
    return value


def paused(
    sounds: Sequence[Sound], made: Sequence[int] | None, sample_rate: int, name: str
) -> dict[str, float | None]:  # fmt: skip
    """made: pauses of each as the renderer counts them."""
    found = [quiets(sound, sample_rate) for sound in sounds]
    mean = float(np.mean([lasting(one).sum() for one in found])) if found else None
    counts = [0] * len(found) if made is None else list(made)
    longest = [np.sort(one)[::-1][:count].sum() for one, count in zip(found, counts, strict=True)]
    return {f"{name}pauses": mean, f"{name}pause": float(sum(longest) / sum(counts)) if any(counts) else None}


def pauses(audio: Sound, sample_rate: int) -> list[float]:
    """Return the lengths in seconds of the pauses inside `[S]`."""
    return [float(quiet) for quiet in lasting(quiets(audio, sample_rate))]


def lasting(found: NDArray[np.float64]) -> NDArray[np.float64]:
    """Those of quiets that are pauses."""
    return found[found >= PAUSE - 1e-9]


def quiets(audio: Sound, sample_rate: int) -> NDArray[np.float64]:
    """Return seconds between sounds of a voice in `[S]`; empty without any."""
    gaps = np.diff(voiced(audio, sample_rate)) - 1
    return gaps[gaps > 0] * FRAME


def voiced(audio: Sound, sample_rate: int) -> NDArray[np.intp]:
    """Return indices of frames of `[S]` that contain a voice, were it at the models' loudness."""
    known, size = loudness(audio, sample_rate), round(FRAME * sample_rate)
    if not np.isfinite(known):
        return np.empty(0, np.intp)
    frames = (audio * loudness_gain(known))[: len(audio) // size * size].reshape(-1, size)
    return np.flatnonzero(np.square(frames, dtype=np.float64).mean(1) > 10 ** (QUIET / 10))


def level(audio: Sound) -> float:
    """Return the power of `[S]` in dBFS."""
    return decibel(float(np.sqrt(np.square(audio, dtype=np.float64).mean()))) if len(audio) else FLOOR


def decibel(amplitude: float) -> float:
    return max(FLOOR, 20 * float(np.log10(max(amplitude, 1e-12))))


def cells(value: dict[str, Any]) -> list[str]:
    shown = ("loudness", ".1f"), ("peak", ".1f"), ("start", ".0f"), ("join", ".0f"), *(
        (name, ".2f") for name in ("pauses", "reference_pauses", "pause", "reference_pause")
    )  # fmt: skip
    return [
        value["voice"], *("" if value.get(name) is None else format(value[name], form) for name, form in shown)
    ]  # fmt: skip
