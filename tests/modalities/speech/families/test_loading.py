"""Loading of Hugging Face folders and repositories: family detection, codec lookup, and errors in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import soundfile
import typer
from huggingface_hub.errors import LocalEntryNotFoundError
from typer.testing import CliRunner

from polydraft.apps.cli.models import models
from polydraft.apps.cli.speech import speech
from polydraft.core.errors import InvalidArgument, OutputUnwritable, UnknownModel, UnsupportedModel, WeightsError
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card
from polydraft.modalities.speech.pipeline import SpeechPipeline, generate_speech

from .conftest import MAKERS, RATE


def test_card_defaults_are_the_published_ones(folders: dict[str, Path]):
    cards = {name: load_card(str(folder)) for name, folder in folders.items()}
    assert all(cards[name].manifest["family"] == name and cards[name].modality == "speech" for name in MAKERS)
    assert cards["orpheus"].defaults["repetition_penalty"] == 1.1 and cards["neutts"].defaults["top_k"] == 50
    assert all("pld" in card.methods and "eagle2" not in card.methods for card in cards.values())


def test_cosyvoice_default_sampling_is_repetition_aware(pipes: dict[str, SpeechPipeline]):
    sampling = pipes["cosyvoice2"].sampling_params(temperature=None, top_p=0.9)
    assert sampling.repetition_aware is not None and sampling.repetition_aware.window == 10
    assert (sampling.top_k, sampling.top_p, sampling.temperature) == (25, 0.9, 1.0)


def test_models_command_shows_family_cards(folders: dict[str, Path]):
    app = typer.Typer()
    app.command()(models)
    results = {name: CliRunner().invoke(app, [str(folder)]) for name, folder in folders.items()}
    assert not any(outcome.exit_code for outcome in results.values()) and "tara" in results["orpheus"].output


def test_generate_speech_saves_audio_or_refuses(folders: dict[str, Path], tmp_path: Path):
    result = generate_speech("Hi.", model=str(folders["orpheus"]), voice="leo", dtype="float32", seed=1)
    assert result.save(tmp_path / "a.wav").stat().st_size > 1000
    silent = generate_speech("Hi.", model=str(folders["cosyvoice2"]), dtype="float32")
    with pytest.raises(OutputUnwritable, match="speech tokens from result.tokens"):
        silent.save(tmp_path / "b.wav")
    assert len(silent.tokens) and not (tmp_path / "b.wav").exists()


def test_speech_command_clones_reference_voice(
    folders: dict[str, Path], tmp_path: Path, reference: tuple[np.ndarray, int]
):
    app = typer.Typer()
    app.command()(speech)
    soundfile.write(tmp_path / "me.wav", reference[0], RATE)
    arguments = ["Hi.", "-o", tmp_path / "a.wav", "--model", folders["llasa"], "--dtype", "float32"]
    reference_options = [
        "--reference",
        tmp_path / "me.wav",
        "--reference-text",
        "Hello.",
        "--repetition-penalty",
        "1.2",
    ]
    outcome = CliRunner().invoke(app, [str(part) for part in [*arguments, *reference_options]])
    assert outcome.exit_code == 0 and soundfile.info(tmp_path / "a.wav").samplerate == 16_000, outcome.output
    silent = ["Hi.", "-o", tmp_path / "b.wav", "--model", folders["cosyvoice2"]]
    assert isinstance(CliRunner().invoke(app, [str(part) for part in silent]).exception, OutputUnwritable)


def test_load_codec_from_other_folder(folders: dict[str, Path], tmp_path: Path):
    model = shutil.copytree(folders["orpheus"], tmp_path / "model")
    (model / "codec").rename(tmp_path / "snac")
    with pytest.raises(WeightsError, match="codec='hubertsiuzdak/snac_24khz'"):
        load(str(model))
    with pytest.raises(WeightsError, match="no folder"):
        load(str(model), codec=str(tmp_path / "nowhere" / "at" / "all"))
    assert load(str(model), codec=str(tmp_path / "snac"), dtype="float32").sample_rate == 24_000


def test_load_codec_for_built_in_model_is_refused():
    with pytest.raises(InvalidArgument, match="of its own"):
        load("tiny-image", codec="x")


@pytest.mark.parametrize("family", ["vibevoice", "pocket_tts", "gradium_phonon_tts"])
def test_load_card_deterministic_family_is_refused(family: str, folders: dict[str, Path], tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    shutil.copy(folders["orpheus"] / "tokenizer.json", tmp_path)
    with pytest.raises(UnsupportedModel, match="without drawing again"):
        load_card(str(tmp_path))


def test_load_unknown_family_is_refused(folders: dict[str, Path], tmp_path: Path):
    model = tmp_path / "model"
    model.mkdir()
    with pytest.raises(UnknownModel, match="no config.json"):
        load(str(model))
    (model / "config.json").write_text("{}")
    with pytest.raises(UnknownModel, match="orpheus, neutts, llasa, cosyvoice2"):
        load(str(model))


@pytest.mark.parametrize("fault", ["tokenizer", "weights", "ids"])
def test_load_mixed_model_parts_is_refused(folders: dict[str, Path], tmp_path: Path, fault: str):
    model = shutil.copytree(folders["llasa"], tmp_path / "model")
    if fault == "tokenizer":
        text = (model / "tokenizer.json").read_text()
        (model / "tokenizer.json").write_text(text.replace("SPEECH_GENERATION_END", "SPEECH_END"))
    elif fault == "weights":
        (model / "model.safetensors").write_bytes(b"x" * 99)
    else:
        text = (model / "tokenizer.json").read_text()
        (model / "tokenizer.json").write_text(text.replace("<|s_63|>", "<|s_64|>"))
    with pytest.raises(WeightsError) as caught:
        load(str(model))
    assert str(caught.value).endswith(".")


def test_load_repository_also_fetches_family_codec(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    downloads: dict[str, Any] = {}
    without_codec = shutil.copytree(folders["orpheus"], tmp_path / "model", ignore=shutil.ignore_patterns("codec"))

    def snapshot(name: str, allow_patterns: list[str], **_: Any) -> str:
        downloads[name] = allow_patterns
        return str(folders["orpheus"] / "codec" if "snac" in name else without_codec)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    pipe = load("canopylabs/orpheus-test", dtype="float32")
    assert pipe.card.name == "orpheus-test" and list(downloads) == [
        "canopylabs/orpheus-test",
        "hubertsiuzdak/snac_24khz",
    ]
    assert not [pattern for pattern in downloads["canopylabs/orpheus-test"] if pattern.endswith((".py", ".bin", ".pt"))]


def test_load_unreachable_repository_is_refused(monkeypatch: pytest.MonkeyPatch):
    def snapshot(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("no connection.\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(UnknownModel, match=r"cannot be fetched from the hub \(no connection\)"):
        load("neuphonic/neutts-test")


def test_load_never_runs_code_of_folder(folders: dict[str, Path], tmp_path: Path):
    model = shutil.copytree(folders["cosyvoice2"], tmp_path / "model")
    fields = json.loads((model / "config.json").read_text())
    fields |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}
    (model / "config.json").write_text(json.dumps(fields))
    (model / "evil.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    with pytest.raises(WeightsError):
        load(str(model))
    assert not (tmp_path / "run").exists()
