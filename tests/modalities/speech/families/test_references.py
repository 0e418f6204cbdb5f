"""Reference recordings: reading, conversion, and errors in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from polydraft.core.errors import InvalidArgument, PromptError
from polydraft.modalities.speech.family import Voice
from polydraft.modalities.speech.pipeline import SpeechPipeline
from polydraft.modalities.speech.reference import load_reference

from .conftest import RATE

TRANSCRIPT = {"reference_text": "Hello there."}


def assert_refused(pipe: SpeechPipeline, word: str, error: type = InvalidArgument, **options: Any) -> None:
    with pytest.raises(error, match=word) as caught:
        pipe("Yes.", **options)
    assert str(caught.value).endswith(".") and len(str(caught.value)) < 250


def test_load_reference_file_equals_its_samples(tmp_path: Path, reference: tuple[np.ndarray, int]):
    path = tmp_path / "a.wav"
    soundfile.write(path, reference[0], RATE, "FLOAT")
    assert np.array_equal(load_reference(path, 24_000), load_reference(reference, 24_000))
    assert np.array_equal(load_reference(str(path), RATE), reference[0])


def test_load_reference_converts_channels_types_and_rates(reference: tuple[np.ndarray, int]):
    audio, _ = reference
    stereo = np.stack([audio, 0 * audio], 1)
    assert np.allclose(load_reference((stereo, RATE), RATE), audio / 2)
    assert np.allclose(load_reference(((audio * 32767).astype(np.int16), RATE), RATE), audio, atol=1e-4)
    assert np.allclose(load_reference((torch.from_numpy(audio), RATE), RATE), audio)
    assert len(load_reference((audio, 8_000), 24_000)) == 3 * len(audio)


def test_cloning_tokens_depend_on_reference(pipes: dict[str, SpeechPipeline], reference: tuple[np.ndarray, int]):
    other = np.random.default_rng(0).standard_normal(RATE).astype(np.float32) * 0.2, RATE
    one, same, two = (
        pipes["llasa"]("Yes, we can.", reference=recording, seed=2, **TRANSCRIPT)
        for recording in (reference, reference, other)
    )
    assert one.tokens.equal(same.tokens) and not one.tokens.equal(two.tokens) and one.voice == "reference"


def test_reference_invalid_file_is_refused(pipes: dict[str, SpeechPipeline], tmp_path: Path):
    pipe, path = pipes["neutts"], tmp_path / "a.wav"
    assert_refused(pipe, "no file", reference=path, **TRANSCRIPT)
    assert_refused(pipe, "no file", reference=tmp_path, **TRANSCRIPT)
    path.write_bytes(b"this is no sound at all" * 99)
    assert_refused(pipe, "cannot be read as sound", reference=path, **TRANSCRIPT)
    path.write_bytes(b"")
    assert_refused(pipe, "cannot be read as sound", reference=path, **TRANSCRIPT)
    (tmp_path / "a.raw").write_bytes(bytes(9999))
    assert_refused(pipe, "cannot be read as sound", reference=tmp_path / "a.raw", **TRANSCRIPT)
    soundfile.write(tmp_path / "a.flac", np.random.default_rng(0).standard_normal(2 * RATE) * 0.1, RATE)
    cut = (tmp_path / "a.flac").read_bytes()
    (tmp_path / "a.flac").write_bytes(cut[: len(cut) // 9])
    assert_refused(pipe, "0.5 to 30|cannot be read|empty", reference=tmp_path / "a.flac", **TRANSCRIPT)
    soundfile.write(path, np.zeros(0, np.float32), RATE)
    assert_refused(pipe, "empty", reference=path, **TRANSCRIPT)
    soundfile.write(path, np.zeros(RATE, np.float32), RATE)
    assert_refused(pipe, "silent", reference=path, **TRANSCRIPT)


def test_reference_long_file_is_refused_by_header(
    pipes: dict[str, SpeechPipeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "hour.flac"
    soundfile.write(path, np.zeros(3600 * 4000, np.int16), 4000)

    def fail_if_decoded(*_: Any, **__: Any) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(soundfile.SoundFile, "read", fail_if_decoded)
    assert_refused(pipes["llasa"], "3600 s; it must last from 0.5 to 30 s", reference=path, **TRANSCRIPT)


def test_reference_many_channels_are_refused_by_header(
    pipes: dict[str, SpeechPipeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "wall.wav"
    soundfile.write(path, np.zeros((20_000, 1000), np.int16), 4000, "PCM_U8")
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *_, **__: pytest.fail("it was decoded"))
    assert_refused(pipes["llasa"], "1000 channels of 20,000 samples", reference=path, **TRANSCRIPT)
    wide = np.broadcast_to(np.float32(1), (20_000, 1000))
    assert_refused(pipes["llasa"], "1000 channels of 20,000 samples", reference=(wide, 4000), **TRANSCRIPT)


@pytest.mark.parametrize(
    ("made", "word"),
    [
        ((np.zeros(0, np.float32), RATE), "empty"),
        ((np.full(RATE, 1e-5, np.float32), RATE), "silent"),
        ((np.full(RATE, np.nan, np.float32), RATE), "no numbers"),
        ((np.ones(100, np.float32), RATE), "0.5 to 30"),
        ((np.ones(31 * RATE, np.float32), RATE), "0.5 to 30"),
        ((np.ones((2, 2, 2), np.float32), RATE), "no recording"),
        ((np.array(["a"] * RATE), RATE), "no recording"),
        ((np.ones(RATE, np.float32), 0), "at 0 Hz"),
        ((np.ones(RATE, np.float32), "fast"), "no recording"),
        (np.ones(RATE, np.float32), "no recording"),
        (7, "no recording"),
    ],
)
def test_reference_invalid_samples_are_refused(pipes: dict[str, SpeechPipeline], made: Any, word: str):
    assert_refused(pipes["llasa"], word, reference=made, **TRANSCRIPT)


def test_only_cloning_families_require_reference_audio_and_text(
    pipes: dict[str, SpeechPipeline], reference: tuple[np.ndarray, int]
):
    for name in ("neutts", "llasa"):
        assert_refused(pipes[name], "give reference and reference_text")
        assert_refused(pipes[name], "give reference and reference_text", voice="tara")
        assert_refused(pipes[name], "reference_text is missing", reference=reference)
        assert_refused(pipes[name], "reference_text is missing", reference=reference, reference_text=" ")
        assert_refused(pipes[name], "give reference and reference_text", **TRANSCRIPT)
    assert_refused(pipes["orpheus"], "choose a voice of tara, leah", reference=reference, **TRANSCRIPT)
    assert_refused(pipes["orpheus"], "choose a voice of tara, leah", **TRANSCRIPT)
    assert_refused(pipes["cosyvoice2"], "leave it out", reference=reference, **TRANSCRIPT)
    assert_refused(pipes["cosyvoice2"], "has no voices", voice="tara")


def test_prompt_reference_without_room_is_refused(pipes: dict[str, SpeechPipeline]):
    family = pipes["neutts"].family
    voice = Voice("reference", "a" * 300, torch.zeros(1490, dtype=torch.long))
    with pytest.raises(PromptError, match="shorter reference"):
        pipes["neutts"].prompt("b" * 240, voice, 0, 0)
    assert pipes["neutts"].prompt("b.", voice, 0, 0).max_new_tokens <= family.context - 1490
