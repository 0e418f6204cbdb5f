"""A spectrogram of speech with the runs that were committed together drawn under it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from polydraft.apps.measure import plots
from polydraft.modalities.image.result import write_image
from polydraft.modalities.speech.result import SpeechResult

WINDOW, HOP = 512, 128  # samples
RANGE = 70.0  # dB shown below the loudest
SHADES = ("#2d6ec8", "#9cc3f0")  # passes in turns, so that one ends where the other begins


def save_spectrogram(result: SpeechResult, path: Path) -> Path:
    """Time from left to right; below, a box a target pass, as wide as what it committed."""
    figure = Figure(figsize=(max(6.0, min(2.4 * result.seconds, 24.0)), 4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[5, 1])
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(result.audio, (0, WINDOW)), WINDOW)[::HOP]
    power = 20 * np.log10(np.abs(np.fft.rfft(frames * np.hanning(WINDOW))) + 1e-7)
    above.imshow(
        power.T, origin="lower", aspect="auto", cmap="magma", vmax=power.max(), vmin=power.max() - RANGE,
        extent=(0.0, result.seconds, 0.0, result.sample_rate / 2000),
    )  # fmt: skip
    above.set(ylabel="kHz")
    each = result.seconds / max(1, len(result.tokens))
    edges = np.flatnonzero(np.diff(result.passes.numpy(), prepend=-1, append=-1))
    spans = [(start * each, (end - start) * each) for start, end in zip(edges, edges[1:], strict=False)]
    for turn, colour in enumerate(SHADES):
        below.broken_barh(spans[turn::2], (0, 1), color=colour)
    below.set(xlabel="seconds", yticks=[], xlim=(0, result.seconds))
    below.set_title(
        f"{len(spans)} runs of {len(result.tokens)} codes in {result.stats.target_passes} target passes, "
        f"τ {result.stats.mean_accepted_length:.2f}, {result.method}", fontsize=9,
    )  # fmt: skip
    notes = {"text": result.text, "model": result.model, "method": result.method, "software": "polydraft"}
    return write_image(plots.rendered(figure), path, notes)
