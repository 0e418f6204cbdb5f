"""A long recording of a known text loses no word where windows meet, and says none twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polydraft.apps.measure.word_errors import count_word_edits, text_normaliser
from polydraft.modalities.loading import load
from polydraft.modalities.packaged import PACKAGED
from polydraft.modalities.transcription.sound import SAMPLE_RATE, open_sound
from polydraft.modalities.transcription.whisper_ct2 import convert_published

MODEL = "whisper-tiny.en"
SENTENCES = (  # about three seconds each
    "I would like to thank all of you for your help.", "They are going to build a new school next year.",
    "The president will speak to the nation tonight.", "My father bought this house a long time ago.",
    "She wants to learn how to play the piano.", "He opened the window and looked at the street.",
)  # fmt: skip
PAUSES = (0.6, 0.9, 1.2)  # seconds after sentences, in turns; in shorter ones timestamps cut off the next word
ORDERS = ((0, 1, 2, 3, 4, 5), (2, 5, 0, 3, 1, 4), (5, 3, 1, 4, 0, 2))  # of sentences


@pytest.mark.skipif(not PACKAGED[MODEL].is_installed, reason="the extra listen, which brings Whisper, is missing")
def test_words_at_window_seams_come_once(tmp_path: Path) -> None:
    convert_published(MODEL, tmp_path / "model")
    speech = load("tiny-speech")
    spoken = [speech(text, voice="rms", seed=1) for text in SENTENCES]
    sounds = [np.concatenate(list(open_sound((each.audio, each.sample_rate)))) for each in spoken]
    order = [index for indices in ORDERS for index in indices]
    pieces = []
    for place, index in enumerate(order):
        pieces += [sounds[index], np.zeros(round(PAUSES[place % len(PAUSES)] * SAMPLE_RATE), np.float32)]
    audio, normalise = np.concatenate(pieces), text_normaliser("en")
    assert len(audio) > 70 * SAMPLE_RATE
    result = load(tmp_path / "model", dtype="float32")((audio, SAMPLE_RATE), temperature=0.0)
    assert len({segment.seek for segment in result.segments}) >= 3
    text = " ".join(SENTENCES[index] for index in order)
    edits = count_word_edits(normalise(text), normalise(result.text))
    # a window that begins at a wrong place loses or repeats a sentence of nine words
    assert edits.errors <= 2, (edits, result.text)
