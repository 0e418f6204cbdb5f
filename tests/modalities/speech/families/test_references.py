"""Recordings to imitate: what is heard of them, and every bad one refused in one sentence."""

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

SAID = {"reference_text": "Hello there."}


def refused(pipe: SpeechPipeline, word: str, error: type = InvalidArgument, **options: Any) -> None:
    with pytest.raises(error, match=word) as caught:
        pipe("Yes.", **options)
    assert str(caught.value).endswith(".") and len(str(caught.value)) < 250


def test_a_file_is_heard_as_its_samples_are(tmp_path: Path, reference: tuple[np.ndarray, int]):
    path = tmp_path / "a.wav"
    soundfile.write(path, reference[0], RATE, "FLOAT")
    assert np.array_equal(load_reference(path, 24_000), load_reference(reference, 24_000))
    assert np.array_equal(load_reference(str(path), RATE), reference[0])


def test_stereo_is_mixed_whole_numbers_are_scaled_and_any_rate_is_read(reference: tuple[np.ndarray, int]):
    sound, _ = reference
    stereo = np.stack([sound, 0 * sound], 1)
    assert np.allclose(load_reference((stereo, RATE), RATE), sound / 2)
    assert np.allclose(load_reference(((sound * 32767).astype(np.int16), RATE), RATE), sound, atol=1e-4)
    assert np.allclose(load_reference((torch.from_numpy(sound), RATE), RATE), sound)
    assert len(load_reference((sound, 8_000), 24_000)) == 3 * len(sound)


def test_whose_voice_it_is_is_heard(pipes: dict[str, SpeechPipeline], reference: tuple[np.ndarray, int]):
    other = np.random.default_rng(0).standard_normal(RATE).astype(np.float32) * 0.2, RATE
    one, same, two = (
        pipes["llasa"]("Yes, we can.", reference=who, seed=2, **SAID) for who in (reference, reference, other)
    )
    assert one.tokens.equal(same.tokens) and not one.tokens.equal(two.tokens) and one.voice == "reference"


def test_files_that_are_no_recording_are_refused(pipes: dict[str, SpeechPipeline], tmp_path: Path):
    pipe, path = pipes["neutts"], tmp_path / "a.wav"
    refused(pipe, "no file", reference=path, **SAID)
    refused(pipe, "no file", reference=tmp_path, **SAID)
    path.write_bytes(b"this is no sound at all" * 99)
    refused(pipe, "cannot be read as sound", reference=path, **SAID)
    path.write_bytes(b"")
    refused(pipe, "cannot be read as sound", reference=path, **SAID)
    (tmp_path / "a.raw").write_bytes(bytes(9999))
    refused(pipe, "cannot be read as sound", reference=tmp_path / "a.raw", **SAID)
    soundfile.write(tmp_path / "a.flac", np.random.default_rng(0).standard_normal(2 * RATE) * 0.1, RATE)
    cut = (tmp_path / "a.flac").read_bytes()
    (tmp_path / "a.flac").write_bytes(cut[: len(cut) // 9])
    refused(pipe, "0.5 to 30|cannot be read|empty", reference=tmp_path / "a.flac", **SAID)
    soundfile.write(path, np.zeros(0, np.float32), RATE)
    refused(pipe, "empty", reference=path, **SAID)
    soundfile.write(path, np.zeros(RATE, np.float32), RATE)
    refused(pipe, "silent", reference=path, **SAID)


def test_an_hour_is_refused_by_its_header(
    pipes: dict[str, SpeechPipeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "hour.flac"
    soundfile.write(path, np.zeros(3600 * 4000, np.int16), 4000)

    def decoded(*_: Any, **__: Any) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(soundfile.SoundFile, "read", decoded)
    refused(pipes["llasa"], "3600 s; it must last from 0.5 to 30 s", reference=path, **SAID)


def test_a_recording_of_many_channels_is_refused_by_its_header(
    pipes: dict[str, SpeechPipeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "wall.wav"
    soundfile.write(path, np.zeros((20_000, 1000), np.int16), 4000, "PCM_U8")
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *_, **__: pytest.fail("it was decoded"))
    refused(pipes["llasa"], "1000 channels of 20,000 samples", reference=path, **SAID)
    broad = np.broadcast_to(np.float32(1), (20_000, 1000))
    refused(pipes["llasa"], "1000 channels of 20,000 samples", reference=(broad, 4000), **SAID)


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
def test_samples_that_are_no_recording_are_refused(pipes: dict[str, SpeechPipeline], made: Any, word: str):
    refused(pipes["llasa"], word, reference=made, **SAID)


def test_who_clones_wants_recording_and_words_and_nobody_else_does(
    pipes: dict[str, SpeechPipeline], reference: tuple[np.ndarray, int]
):
    for name in ("neutts", "llasa"):
        refused(pipes[name], "give reference and reference_text")
        refused(pipes[name], "give reference and reference_text", voice="tara")
        refused(pipes[name], "reference_text is missing", reference=reference)
        refused(pipes[name], "reference_text is missing", reference=reference, reference_text=" ")
        refused(pipes[name], "give reference and reference_text", **SAID)
    refused(pipes["orpheus"], "choose a voice of tara, leah", reference=reference, **SAID)
    refused(pipes["orpheus"], "choose a voice of tara, leah", **SAID)
    refused(pipes["cosyvoice2"], "leave it out", reference=reference, **SAID)
    refused(pipes["cosyvoice2"], "has no voices", voice="tara")


def test_a_reference_that_leaves_no_room_is_refused(pipes: dict[str, SpeechPipeline]):
    family = pipes["neutts"].family
    voice = Voice("reference", "a" * 300, torch.zeros(1490, dtype=torch.long))
    with pytest.raises(PromptError, match="shorter reference"):
        pipes["neutts"].prompt("b" * 240, voice, 0, 0)
    assert pipes["neutts"].prompt("b.", voice, 0, 0).max_new_tokens <= family.context - 1490
