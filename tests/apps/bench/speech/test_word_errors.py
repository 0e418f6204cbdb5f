"""Counting word errors, and the recogniser itself."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from polydraft.apps.bench.speech.listener import Listener, plain_words
from polydraft.apps.lab.recipes.speech.corpus.flite import synthesise
from polydraft.apps.measure.word_errors import count_word_edits


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
    assert count_word_edits(plain_words(reference), plain_words(transcript)).errors == errors


def test_words_are_compared_normalised_and_without_punctuation():
    assert plain_words("Dr. Jones, it's OK.") == plain_words("doctor jones its ok")


@pytest.mark.skipif(shutil.which("flite") is None, reason="flite, whose speech is recognised here, is not installed")
def test_clear_speech_is_transcribed():
    samples, _ = synthesise("She has always lived in the old house.", "rms")
    transcript = Listener().hear(samples.astype(np.float32) / 32768)
    assert count_word_edits(plain_words("she has always lived in the old house"), transcript).errors <= 1
