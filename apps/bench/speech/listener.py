"""Pocketsphinx as a recogniser; its American English model ships in its wheel.

plain_words("Dr. Jones"), Listener().hear(audio)      # ["doctor", "jones"], and what it understands
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polydraft.core.errors import PolydraftError
from polydraft.modalities.speech.result import to_pcm16

SAMPLE_RATE = 16_000  # Hz, of the recognisers
HOMOPHONES = {"dr": "doctor", "mr": "mister", "mrs": "missus", "ms": "miss", "okay": "ok"}  # as the recogniser writes


class ListenerMissing(PolydraftError, ImportError):
    """pocketsphinx is not installed."""


class Listener:
    """A recogniser of speech."""

    @cached_property
    def decoder(self) -> Any:
        try:
            from pocketsphinx import Decoder
        except ImportError as error:
            raise ListenerMissing("word errors need pocketsphinx; `pip install pocketsphinx` brings it.") from error
        return Decoder(samprate=SAMPLE_RATE, loglevel="FATAL")

    def hear(self, audio: NDArray[np.float32], sample_rate: int = SAMPLE_RATE) -> list[str]:
        """Return the recognised words."""
        self.decoder.start_utt()
        self.decoder.process_raw(to_pcm16(at_recogniser_rate(audio, sample_rate)), full_utt=True)
        self.decoder.end_utt()
        found = self.decoder.hyp()
        return plain_words(found.hypstr if found else "")


def at_recogniser_rate(audio: NDArray[np.float32], sample_rate: int) -> NDArray[np.float32]:
    """Return sound `[S]` at the rate that recognisers listen at."""
    if sample_rate == SAMPLE_RATE:
        return audio
    import soxr

    resampled: NDArray[np.float32] = soxr.resample(audio, sample_rate, SAMPLE_RATE)
    return resampled


def plain_words(text: str) -> list[str]:
    """Lower-case words without marks."""
    words = re.findall(r"[a-z']+", text.lower())
    return [HOMOPHONES.get(word, word).replace("'", "") for word in words]
