"""Speech as it is made: its spectrogram from left to right, and under it the runs in the colours of their passes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polydraft.apps.ui.views.picture import data_url
from polydraft.apps.ui.views.runs import runs

WINDOW, HOP = 512, 128  # samples
RANGE = 65.0  # dB shown below the loudest
QUIETEST = 20.0  # dB; what is softer than this all along is silence
ROWS = (WINDOW // 2) // 2  # two frequencies a pixel
ANCHORS = ((21, 22, 28), (44, 30, 84), (110, 65, 165), (200, 62, 122), (230, 85, 60), (245, 190, 50), (255, 246, 214))
PLACES = np.linspace(0, len(ANCHORS) - 1, 256)
SIDES = [np.interp(PLACES, range(len(ANCHORS)), side) for side in zip(*ANCHORS, strict=True)]
RAMP = np.stack(SIDES, axis=1).astype(np.uint8)


class Spectrogram:
    """Columns of a growing sound; only what is new is computed."""

    def __init__(self) -> None:
        self.rest: NDArray[np.float32] = np.zeros(WINDOW // 2, np.float32)
        self.power: NDArray[np.float32] = np.zeros((0, ROWS), np.float32)

    def add(self, audio: NDArray[np.float32]) -> None:
        """Sound `[samples]` that follows what is here."""
        self.rest = np.concatenate([self.rest, audio.astype(np.float32)])
        count = (len(self.rest) - WINDOW) // HOP + 1
        if count < 1:
            return
        frames = np.lib.stride_tricks.sliding_window_view(self.rest, WINDOW)[::HOP][:count]
        power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW)))[:, : 2 * ROWS].reshape(count, ROWS, 2).max(-1)
        self.power = np.concatenate([self.power, (20 * np.log10(power + 1e-7)).astype(np.float32)])
        self.rest = self.rest[count * HOP :]

    def image(self) -> Image.Image:
        """Time to the right, frequency upwards."""
        if not len(self.power):
            return Image.new("RGB", (1, ROWS), ANCHORS[0])
        top = max(float(self.power.max()), QUIETEST)
        level = np.clip((self.power - (top - RANGE)) / RANGE, 0, 1) ** 1.4
        return Image.fromarray(RAMP[(level * 255).astype(np.uint8).T[::-1]])


def sound(drawn: Image.Image | None, passes: Sequence[int], made: float, length: float, khz: float, key: str) -> str:
    """Return the spectrogram of the first `made` seconds of about `length`, and the pass that committed each code.

    khz: the highest frequency shown. key: which sound of the page's player this is.
    """
    length = max(length, made, 0.1)
    each = (made / len(passes)) if passes else 0.0
    boxes = "".join(
        f'<rect class="run shade-{run.shade}" x="{run.start * each:.4f}" width="{(run.end - run.start) * each:.4f}" '
        f'y="0" height="1"><title>{run}</title></rect>'
        for run in runs(passes)
    )
    width = share(made, length)
    shown = "" if drawn is None else f'<img src="{data_url(drawn)}" alt="" decoding="sync" style="width:{width}">'
    return (
        f'<div class="sound" data-sound="{key}" data-length="{length:.3f}" tabindex="0" role="group" '
        'aria-label="Speech">'
        f'<div class="reel" style="--seconds:{length:.2f}">'
        f'<div class="spectrum" role="img" aria-label="Spectrogram of {made:.1f} seconds of speech">{shown}'
        f'<span class="khz high">{khz:g} kHz</span><span class="khz low">0</span></div>'
        f'<svg class="band" viewBox="0 0 {length:.4f} 1" preserveAspectRatio="none" aria-hidden="true">{boxes}</svg>'
        f'<div class="ticks" aria-hidden="true">{ticks(length)}</div>'
        '<span class="playhead" aria-hidden="true"></span></div></div>'
    )


def ticks(length: float, most: float = 8) -> str:
    """Return ticks along `length` seconds, at most as many as there is room for."""
    step = next((step for step in (0.5, 1, 2, 5, 10, 20, 30, 60) if length / step <= most), 120)
    labels = ((at, f"{at:g} s" if length <= 60 else clock_time(at)) for at in np.arange(0, length, step))
    return "".join(f'<span style="left:{share(at, length)}">{label}</span>' for at, label in labels)


def clock_time(seconds: float) -> str:
    """Return a time such as 0:07 or 1:02:03."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.3f}%"
