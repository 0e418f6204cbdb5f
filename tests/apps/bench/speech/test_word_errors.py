"""Counting word errors, and the recogniser itself."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from polydraft.apps.bench.speech.word_errors import Listener, plain_words, word_errors
from polydraft.apps.lab.recipes.speech.corpus.flite import synthesise


@pytest.mark.parametrize(
    ("reference", "transcript", "errors"),
    [
        ("we meet again", "we meet again", 0),
        ("we meet again", "we meat again", 1),
        ("we meet again", "meet again tomorrow", 2),
        ("we meet again", "", 3),
        ("", "hm", 1),
    ],
)
def test_word_errors_are_minimal_edits(reference: str, transcript: str, errors: int):
    assert word_errors(plain_words(reference), plain_words(transcript)) == errors


def test_words_are_compared_normalised_and_without_punctuation():
    assert plain_words("Dr. Jones, it's OK.") == plain_words("doctor jones its ok")


@pytest.mark.skipif(shutil.which("flite") is None, reason="flite, whose speech is recognised here, is not installed")
def test_clear_speech_is_transcribed():
    samples, _ = synthesise("She has always lived in the old house.", "rms")
    transcript = Listener().hear(samples.astype(np.float32) / 32768)
    assert word_errors(plain_words("she has always lived in the old house"), transcript) <= 1
