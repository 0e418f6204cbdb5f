"""Whisper as a recogniser: CTranslate2 weights match the network's, and transcripts become plain words."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from polydraft.apps.bench.speech import intelligibility
from polydraft.apps.bench.speech.intelligibility import BUNDLE, RECOGNISERS, cells, headers, judged, recognisers
from polydraft.apps.bench.speech.whisper import Whisper, spelt_words, windows
from polydraft.core.errors import InvalidArgument, MissingPackage

from ....modalities.transcription.ct2_files import model_bin
from .test_intelligibility import TEXTS, Pipe

SECOND = 16_000  # samples


class Vocabulary:
    """Tokenizer whose texts end with the id 58."""

    def token_to_id(self, name: str) -> int:
        return 58


@pytest.fixture
def small() -> WhisperForConditionalGeneration:
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=60, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=10,
        max_target_positions=12, pad_token_id=58, bos_token_id=58, eos_token_id=58, decoder_start_token_id=59,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    return model


def test_stored_weights_match_the_network(small: WhisperForConditionalGeneration, tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(model_bin(small, np.float16))
    whisper = Whisper(tmp_path)
    whisper.tokenizer = Vocabulary()
    sound, ids = torch.randn(1, 8, 20), torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        assert torch.equal(
            whisper.model(input_features=sound, decoder_input_ids=ids).logits,
            small.half().float()(input_features=sound, decoder_input_ids=ids).logits,
        )


def test_long_audio_is_split_at_quiet_points() -> None:
    audio = np.ones(70 * SECOND, np.float32)
    audio[27 * SECOND : 27 * SECOND + 800] = 0
    parts = list(windows(audio))
    assert np.array_equal(np.concatenate(parts), audio) and max(map(len, parts)) <= 30 * SECOND
    assert 27 * SECOND < len(parts[0]) < 27 * SECOND + 800 and len(parts) == 3


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


def test_recognisers_by_default_are_those_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(RECOGNISERS, "pocketsphinx", Ears)
    monkeypatch.setitem(RECOGNISERS, "whisper", Ears)
    monkeypatch.setattr(intelligibility, "find_spec", lambda package: package)
    assert list(recognisers(None)) == ["pocketsphinx", "whisper"]
    monkeypatch.setattr(intelligibility, "find_spec", lambda package: None)
    assert list(recognisers(None)) == ["pocketsphinx"] and "polydraft[whisper]" in capsys.readouterr().err
    assert list(recognisers(" whisper, pocketsphinx")) == ["whisper", "pocketsphinx"]
    for wrong in ("", "whispr", "pocketsphinx,sphinx4"):
        with pytest.raises(InvalidArgument, match="pocketsphinx, whisper, wav2vec2"):
            recognisers(wrong)


def test_missing_weights_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, BUNDLE, None)
    with pytest.raises(MissingPackage, match=r"pip install 'polydraft\[whisper\]'"):
        Whisper()


@pytest.mark.skipif(find_spec(BUNDLE) is None, reason="Whisper's weights are not installed")
def test_clear_speech_is_transcribed() -> None:
    from polydraft import generate_speech

    whisper, speech = Whisper(), generate_speech("We will meet again tomorrow.", voice="rms")
    assert whisper.hear(speech.audio, speech.sample_rate) == ["we", "will", "meet", "again", "tomorrow"]
