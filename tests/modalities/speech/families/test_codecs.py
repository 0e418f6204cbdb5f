"""Codecs of the families with small random weights: chunked decoding, encoding, and invalid files."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from polydraft.core.errors import MissingPackage, WeightsError
from polydraft.modalities.loading import load
from polydraft.modalities.speech.codecs.chunks import ChunkStream
from polydraft.modalities.speech.codecs.fsq import semantic_features
from polydraft.modalities.speech.codecs.snac import PositionKeyedNoise
from polydraft.modalities.speech.families.orpheus import Orpheus
from polydraft.modalities.speech.family import Voice
from polydraft.modalities.speech.pipeline import SpeechPipeline

from ....apps.command_line import assert_refused, run


def error_db(error: torch.Tensor, signal: torch.Tensor) -> float:
    return 20 * math.log10(float(error.std() / signal.std()) + 1e-15)


def random_frames(family: Orpheus, count: int) -> torch.Tensor:
    codes = torch.randint(family.codes_per_slot, (count, 7), generator=torch.Generator().manual_seed(1))
    return (codes + family.codes_per_slot * torch.arange(7)).flatten()


@pytest.fixture
def orpheus(pipes: dict[str, SpeechPipeline]) -> Orpheus:
    return pipes["orpheus"].family


def test_snac_chunked_decoding_equals_whole_decoding(orpheus: Orpheus):
    codes = random_frames(orpheus, 30)
    stream, whole = orpheus.open_audio_stream(Voice("tara"), 1.0), orpheus.decode(codes, 0)
    joined = torch.cat([*(stream.push(part) for part in codes.split(11)), stream.finish()])
    assert stream.look_ahead == 21 and joined.shape == whole.shape == (30 * 2048,)
    assert error_db(joined - whole, whole) < -90


@pytest.mark.parametrize("fault", ["context", "noise"])
def test_snac_planted_fault_has_audible_seams(orpheus: Orpheus, fault: str, monkeypatch: pytest.MonkeyPatch):
    """Plant bugs: frames that are decoded without their neighbours, and noise that restarts in every chunk."""
    codes, whole = random_frames(orpheus, 30), orpheus.decode(random_frames(orpheus, 30), 0)
    stream = orpheus.open_audio_stream(Voice("tara"), 1.0)
    assert isinstance(stream, ChunkStream)
    if fault == "context":
        stream.window = type(stream.window)(orpheus.samples_per_code, 0, 0, frame=7)
    else:
        stream.decode = lambda around, first: orpheus.decode(around, 0)
    assert error_db(torch.cat([stream.push(codes), stream.finish()]) - whole, whole) > -40


def test_position_keyed_noise_is_fixed_and_normal():
    noise = PositionKeyedNoise(torch.nn.Identity(), 8)
    ones = torch.ones(1, 1, 80_000)
    samples = noise(ones) - 1
    noise.start = 100
    assert (noise(ones) - 1)[..., :1000].equal(samples[..., 800:1800])
    assert abs(float(samples.mean())) < 0.02 and abs(float(samples.std()) - 1) < 0.02


@pytest.mark.parametrize("name", ["neutts", "llasa"])
def test_fsq_chunked_decoding_equals_windowed_reference(pipes: dict[str, SpeechPipeline], name: str):
    """Compare with windows decoded by hand: 50 codes of left context, 5 of right context, a crossfade of one."""
    family = pipes[name].family
    codec, samples = family.codec, family.codec.samples_per_code
    codes = torch.randint(64, (130,), generator=torch.Generator().manual_seed(2))  # 60 of the reference first
    stream = family.open_audio_stream(Voice("reference", codes=codes[:60]), 1.0)
    joined = torch.cat([*(stream.push(part) for part in codes[60:].split(9)), stream.finish()])
    audio, tail = [], torch.empty(0)
    for begin, end in ((60, 66), (66, 91), (91, 116), (116, 130)):
        window = codec.decode(codes[begin - 50 : end + 5], begin - 50)[50 * samples :].clone()
        if len(tail):
            rising = torch.arange(1, samples + 1) / (samples + 1)
            window[:samples] = window[:samples] * rising + tail * (1 - rising)
        audio.append(window[: (end - begin) * samples])
        tail = window[(end - begin) * samples :][:samples]
    expected = torch.cat(audio)
    assert stream.look_ahead == 5 and joined.shape == expected.shape and error_db(joined - expected, expected) < -90


@pytest.mark.parametrize(("name", "codes"), [("neutts", 39), ("llasa", 40)])
def test_fsq_encode_returns_codes_of_recording(pipes: dict[str, SpeechPipeline], name: str, codes: int):
    codec = pipes[name].family.codec
    audio = np.random.default_rng(0).standard_normal(40 * 320 - 1).astype(np.float32) * 0.1
    encoded = codec.encode(audio)
    assert encoded.shape == (codes,) and encoded.min() >= 0 and encoded.max() < 64 and len(encoded.unique()) > 4
    other = codec.encode(audio * np.where(np.arange(len(audio)) < 6400, 1, 0.01).astype(np.float32))
    assert not other.equal(encoded)


def test_semantic_features_equal_transformers_extractor():
    """Compare with the feature extractor of transformers for the same encoder."""
    from transformers import SeamlessM4TFeatureExtractor

    audio = np.random.default_rng(0).standard_normal(16_000).astype(np.float32) * 0.1
    expected = SeamlessM4TFeatureExtractor()(audio, sampling_rate=16_000, return_tensors="np").input_features[0]
    assert np.abs(semantic_features(audio, 16_000) - expected).max() < 0.02


def test_snac_pickle_is_not_opened_but_converted(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Check that loading names the conversion command, and that the converted weights are equal."""
    model = shutil.copytree(folders["orpheus"], tmp_path / "model")
    weights = load_file(model / "codec" / "model.safetensors")
    (model / "codec" / "model.safetensors").unlink()
    torch.save(weights, model / "codec" / "pytorch_model.bin")
    command = "polydraft convert snac .*pytorch_model.bin"
    with monkeypatch.context() as patch, pytest.raises(WeightsError, match=command):
        patch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was opened"))
        load(str(model))
    outcome = run("convert", "snac", model / "codec" / "pytorch_model.bin", "--out", tmp_path / "snac")
    assert outcome.exit_code == 0 and "24 kHz" in outcome.stdout
    converted = load_file(tmp_path / "snac" / "model.safetensors")
    assert converted.keys() == weights.keys() and all(torch.equal(converted[name], weights[name]) for name in weights)
    assert load(str(folders["orpheus"]), dtype="float32").sample_rate == 24_000


def test_snac_pickle_with_code_is_not_converted(folders: dict[str, Path], tmp_path: Path):
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "run"),)

    shutil.copy(folders["orpheus"] / "codec" / "config.json", tmp_path)
    torch.save({"weights": Trap()}, tmp_path / "pytorch_model.bin")
    assert_refused(run("convert", "snac", tmp_path / "pytorch_model.bin", "--out", tmp_path / "snac"), "of tensors")
    assert not (tmp_path / "run").exists() and not (tmp_path / "snac").exists()


def test_load_without_snac_package_names_installation(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "snac", None)
    with pytest.raises(MissingPackage, match="pip install"):
        load(str(folders["orpheus"]))


@pytest.mark.parametrize("name", ["orpheus", "neutts"])
@pytest.mark.parametrize("fault", ["no file", "other sizes", "other codec"])
def test_load_invalid_codec_is_refused(folders: dict[str, Path], tmp_path: Path, name: str, fault: str):
    model = shutil.copytree(folders[name], tmp_path / "model")
    config = model / "codec" / "config.json"
    if fault == "no file":
        config.unlink()
    elif fault == "other sizes":
        fields = json.loads(config.read_text())
        fields["decoder_dim" if name == "orpheus" else "intermediate_size"] *= 2
        config.write_text(json.dumps(fields))
    else:
        shutil.rmtree(model / "codec")
        shutil.copytree(folders["llasa"] / "codec", model / "codec")
    with pytest.raises(WeightsError) as caught:
        load(str(model))
    assert str(caught.value).endswith(".")
