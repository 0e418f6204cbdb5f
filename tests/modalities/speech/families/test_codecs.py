"""The families' real codecs, small: chunks against the whole, codes of a recording, and files that are no codec."""

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


def decibels(error: torch.Tensor, signal: torch.Tensor) -> float:
    return 20 * math.log10(float(error.std() / signal.std()) + 1e-15)


def frames(family: Orpheus, count: int) -> torch.Tensor:
    codes = torch.randint(family.codes_per_slot, (count, 7), generator=torch.Generator().manual_seed(1))
    return (codes + family.codes_per_slot * torch.arange(7)).flatten()


@pytest.fixture
def orpheus(pipes: dict[str, SpeechPipeline]) -> Orpheus:
    return pipes["orpheus"].family


def test_snac_in_chunks_is_snac_at_once(orpheus: Orpheus):
    codes = frames(orpheus, 30)
    stream, whole = orpheus.open_audio_stream(Voice("tara"), 1.0), orpheus.decode(codes, 0)
    joined = torch.cat([*(stream.push(part) for part in codes.split(11)), stream.finish()])
    assert stream.look_ahead == 21 and joined.shape == whole.shape == (30 * 2048,)
    assert decibels(joined - whole, whole) < -90


@pytest.mark.parametrize("fault", ["context", "noise"])
def test_seams_would_be_heard(orpheus: Orpheus, fault: str, monkeypatch: pytest.MonkeyPatch):
    """Planted bugs: a frame decoded without its neighbours; noise that starts anew in every chunk."""
    codes, whole = frames(orpheus, 30), orpheus.decode(frames(orpheus, 30), 0)
    stream = orpheus.open_audio_stream(Voice("tara"), 1.0)
    assert isinstance(stream, ChunkStream)
    if fault == "context":
        stream.window = type(stream.window)(orpheus.samples_per_code, 0, 0, frame=7)
    else:
        stream.decode = lambda around, first: orpheus.decode(around, 0)
    assert decibels(torch.cat([stream.push(codes), stream.finish()]) - whole, whole) > -40


def test_noise_of_a_place_is_one_and_normal():
    noise = PositionKeyedNoise(torch.nn.Identity(), 8)
    ones = torch.ones(1, 1, 80_000)
    drawn = noise(ones) - 1
    noise.start = 100
    assert (noise(ones) - 1)[..., :1000].equal(drawn[..., 800:1800])
    assert abs(float(drawn.mean())) < 0.02 and abs(float(drawn.std()) - 1) < 0.02


@pytest.mark.parametrize("name", ["neutts", "llasa"])
def test_a_transformer_codec_sounds_as_its_window_allows(pipes: dict[str, SpeechPipeline], name: str):
    """Its decoder looks at everything, by attention and norms: what counts is 50 codes back, 5 ahead, a fade of one."""
    family = pipes[name].family
    codec, samples = family.codec, family.codec.samples_per_code
    codes = torch.randint(64, (130,), generator=torch.Generator().manual_seed(2))  # the first 60 are the reference's
    stream = family.open_audio_stream(Voice("reference", codes=codes[:60]), 1.0)
    joined = torch.cat([*(stream.push(part) for part in codes[60:].split(9)), stream.finish()])
    sound, tail = [], torch.empty(0)
    for begin, end in ((60, 66), (66, 91), (91, 116), (116, 130)):
        window = codec.decode(codes[begin - 50 : end + 5], begin - 50)[50 * samples :].clone()
        if len(tail):
            rising = torch.arange(1, samples + 1) / (samples + 1)
            window[:samples] = window[:samples] * rising + tail * (1 - rising)
        sound.append(window[: (end - begin) * samples])
        tail = window[(end - begin) * samples :][:samples]
    wanted = torch.cat(sound)
    assert stream.look_ahead == 5 and joined.shape == wanted.shape and decibels(joined - wanted, wanted) < -90


@pytest.mark.parametrize(("name", "codes"), [("neutts", 39), ("llasa", 40)])
def test_a_recording_becomes_codes(pipes: dict[str, SpeechPipeline], name: str, codes: int):
    codec = pipes[name].family.codec
    sound = np.random.default_rng(0).standard_normal(40 * 320 - 1).astype(np.float32) * 0.1
    made = codec.encode(sound)
    assert made.shape == (codes,) and made.min() >= 0 and made.max() < 64 and len(made.unique()) > 4
    other = codec.encode(sound * np.where(np.arange(len(sound)) < 6400, 1, 0.01).astype(np.float32))
    assert not other.equal(made)


def test_what_the_semantic_encoder_hears_is_kaldis():
    """Against transformers' own extractor for the same encoder."""
    from transformers import SeamlessM4TFeatureExtractor

    sound = np.random.default_rng(0).standard_normal(16_000).astype(np.float32) * 0.1
    theirs = SeamlessM4TFeatureExtractor()(sound, sampling_rate=16_000, return_tensors="np").input_features[0]
    assert np.abs(semantic_features(sound, 16_000) - theirs).max() < 0.02


def test_snac_pickle_is_not_opened_but_converted(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As it is published; loading says which command makes safetensors of it, and what that makes sounds the same."""
    model = shutil.copytree(folders["orpheus"], tmp_path / "model")
    weights = load_file(model / "codec" / "model.safetensors")
    (model / "codec" / "model.safetensors").unlink()
    torch.save(weights, model / "codec" / "pytorch_model.bin")
    command = "polydraft convert snac .*pytorch_model.bin"
    with monkeypatch.context() as patch, pytest.raises(WeightsError, match=command):
        patch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was opened"))
        load(str(model))
    done = run("convert", "snac", model / "codec" / "pytorch_model.bin", "--out", tmp_path / "snac")
    assert done.exit_code == 0 and "24 kHz" in done.stdout
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


def test_without_its_package_one_sentence_says_how_to_get_it(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "snac", None)
    with pytest.raises(MissingPackage, match="pip install"):
        load(str(folders["orpheus"]))


@pytest.mark.parametrize("name", ["orpheus", "neutts"])
@pytest.mark.parametrize("fault", ["no file", "other sizes", "other codec"])
def test_what_is_no_codec_is_refused(folders: dict[str, Path], tmp_path: Path, name: str, fault: str):
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
