"""What a listener notices besides words: ticks at starts and joins, pauses, loudness.

Levels are dBFS. A start is the first 30 ms of a text, a join the 30 ms around the seam of two parts of it; both lie
before a voice begins and are to be silent. A pause is quiet of .1 s or more between the first and the last sound of a
sentence, sound being at -23 LUFS; stops of consonants are shorter. Loudness is ITU-R BS.1770.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polydraft.apps.bench.speech.likeness import Sound
from polydraft.apps.bench.speech.loudness import loudness
from polydraft.modalities.speech.levels import gain

EDGE, FRAME = 0.03, 0.005  # seconds
QUIET = -45.0  # dBFS of a frame without a voice, at -23 LUFS
PAUSE = 0.1  # seconds, the shortest
FLOOR = -120.0  # dBFS; what is below is written so
HEADERS = ["voice", "LUFS", "peak dBFS", "start dBFS", "join dBFS", "pauses s", "flite's", "longest s", "flite's"]


class Heard(NamedTuple):
    """A text said: its sound, the samples where parts after the first begin, and whether it is one sentence."""

    audio: Sound
    seams: list[int]
    single: bool


def row(voice: str, said: Sequence[Heard], reference: Sequence[Sound] | None, sample_rate: int) -> dict[str, Any]:
    """reference: the renderer's sound of the same texts, if there is one. Levels are the worst, pauses means a text."""
    edge = round(EDGE * sample_rate)
    joins = [
        level(one.audio[max(0, seam - edge // 2) : seam + edge // 2]) for one in said for seam in one.seams
    ]  # fmt: skip
    singles = [index for index, one in enumerate(said) if one.single]
    value = {
        "voice": voice, "loudness": loudness(np.concatenate([one.audio for one in said]), sample_rate),
        "peak": decibel(max(float(np.abs(one.audio).max()) for one in said)),
        "start": max(level(one.audio[:edge]) for one in said), "join": max(joins, default=None),
    } | paused([said[index].audio for index in singles], sample_rate, "")  # fmt: skip
    if reference is not None:
        value |= paused([reference[index] for index in singles], sample_rate, "reference_")
    return value


def paused(sounds: Sequence[Sound], sample_rate: int, name: str) -> dict[str, float | None]:
    found = [pauses(sound, sample_rate) for sound in sounds]
    mean = float(np.mean([sum(one) for one in found])) if found else None
    longest = float(np.mean([max(one, default=0.0) for one in found])) if found else None
    return {f"{name}pauses": mean, f"{name}longest": longest}


def pauses(audio: Sound, sample_rate: int) -> list[float]:
    """Seconds of the pauses inside `[S]`."""
    gaps = (np.diff(voiced(audio, sample_rate)) - 1) * FRAME
    return [float(gap) for gap in gaps[gaps >= PAUSE - 1e-9]]


def voiced(audio: Sound, sample_rate: int) -> NDArray[np.intp]:
    """Which frames of `[S]` a voice is in, were it at the models' loudness."""
    known, size = loudness(audio, sample_rate), round(FRAME * sample_rate)
    if not np.isfinite(known):
        return np.empty(0, np.intp)
    frames = (audio * gain(known))[: len(audio) // size * size].reshape(-1, size)
    return np.flatnonzero(np.square(frames, dtype=np.float64).mean(1) > 10 ** (QUIET / 10))


def level(audio: Sound) -> float:
    """dBFS of the power of `[S]`."""
    return decibel(float(np.sqrt(np.square(audio, dtype=np.float64).mean()))) if len(audio) else FLOOR


def decibel(amplitude: float) -> float:
    return max(FLOOR, 20 * float(np.log10(max(amplitude, 1e-12))))


def cells(value: dict[str, Any]) -> list[str]:
    shown = ("loudness", ".1f"), ("peak", ".1f"), ("start", ".0f"), ("join", ".0f"), *(
        (name, ".2f") for name in ("pauses", "reference_pauses", "longest", "reference_longest")
    )  # fmt: skip
    return [
        value["voice"], *("" if value.get(name) is None else format(value[name], form) for name, form in shown)
    ]  # fmt: skip
