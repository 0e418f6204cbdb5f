"""Timed transcripts of one recording: seconds in features, encoder and decoder, measured alike for every engine.

with timed_forward(model.get_encoder()) as encoder: ...
encoder.seconds
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from polydraft.apps.measure.timing import Run, settle


@dataclass(frozen=True)
class LabelledRecording:
    """Recording with the text that is spoken in it."""

    name: str
    audio: NDArray[np.float32] = field(repr=False)  # [S] at 16 kHz
    text: str | None  # None if it is not known


@dataclass(frozen=True)
class TranscriptionRun(Run):
    """Transcript of one recording, or of several; `seconds` are those of decoding, the prompts of windows apart."""

    texts: tuple[str, ...] = ()  # of every recording
    wall_seconds: float = 0.0  # from samples to text
    feature_seconds: float = 0.0
    encoder_seconds: float = 0.0

    @property
    def stages(self) -> dict[str, float]:
        """Return the seconds by stage; the decoder's are those of everything else."""
        decoder_seconds = self.wall_seconds - self.feature_seconds - self.encoder_seconds
        return {"features": self.feature_seconds, "encoder": self.encoder_seconds, "decoder": decoder_seconds}


def sum_transcriptions(runs: Sequence[TranscriptionRun]) -> TranscriptionRun:
    """Return the run that consists of several, one after the other."""
    whole = Run.sum(runs)
    return TranscriptionRun(
        whole.seconds, whole.tokens, whole.outputs, whole.stats, whole.passes,
        tuple(text for run in runs for text in run.texts), sum(run.wall_seconds for run in runs),
        sum(run.feature_seconds for run in runs), sum(run.encoder_seconds for run in runs),
    )  # fmt: skip


class Stopwatch:
    """Seconds of a part of the work, in as many pieces as it has."""

    def __init__(self) -> None:
        self.seconds: float = 0.0
        self.started: float = 0.0

    def start(self) -> None:
        """Begin a piece."""
        settle()
        self.started = time.perf_counter()

    def stop(self) -> None:
        """End a piece."""
        settle()
        self.seconds += time.perf_counter() - self.started

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time the block."""
        self.start()
        try:
            yield
        finally:
            self.stop()


@contextmanager
def timed_forward(module: nn.Module) -> Iterator[Stopwatch]:
    """Yield a stopwatch that runs whenever the module does."""
    watch = Stopwatch()

    def start(*_: Any) -> None:
        watch.start()

    def stop(*_: Any) -> None:
        watch.stop()

    hooks = [module.register_forward_pre_hook(start), module.register_forward_hook(stop)]
    try:
        yield watch
    finally:
        for hook in hooks:
            hook.remove()
