"""Weights are safetensors inside the model's folder, whatever its index, its configuration or its links name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from polydraft.core.errors import WeightsError
from polydraft.modalities.model_card import embedded_models_dir, load_card
from polydraft.modalities.weight_paths import refuse_pickles, tensor_files
from polydraft.modalities.weights import load_causal_lm

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a language model in two shards with a pickle beside them; opening a pickle fails the test."""
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    copy = shutil.copytree(embedded_models_dir() / "tiny-image" / "target", tmp_path / "model")
    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {"model-00001.safetensors": names[::2], "model-00002.safetensors": names[1::2]}
    for shard, inside in shards.items():
        save_file({name: weights[name] for name in inside}, copy / shard, {"format": "pt"})
    torch.save(weights, copy / "pytorch_model.bin")
    write_index(copy, {name: shard for shard, inside in shards.items() for name in inside})
    return copy


def write_index(folder: Path, weight_map: dict[str, str], name: str = INDEX) -> None:
    (folder / name).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


def move_first_tensor(folder: Path, to: str, name: str = INDEX) -> None:
    """Write an index that names another file for the first tensor."""
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    write_index(folder, weight_map | {min(weight_map): to}, name)


def load(folder: Path) -> Any:
    return load_causal_lm(folder, torch.device("cpu"), torch.float32)


def test_sharded_model_is_loaded(folder: Path) -> None:
    assert load(folder).config.model_type == "llama" and set(tensor_files(folder).values()) == {
        folder / "model-00001.safetensors", folder / "model-00002.safetensors",
    }  # fmt: skip


def outside(folder: Path) -> str:
    shutil.copy(folder / "model-00001.safetensors", folder.parent / "other.safetensors")
    return "../other.safetensors"


def absolute(folder: Path) -> str:
    return str(folder.parent / Path(outside(folder)).name)


def link(folder: Path) -> str:
    outside(folder)
    (folder / "link.safetensors").symlink_to("../other.safetensors")
    return "link.safetensors"


BAD_FILES: dict[str, tuple[Callable[[Path], str], str]] = {
    "pickle": (lambda folder: "pytorch_model.bin", "no safetensors file and is never opened"),
    "other ending": (lambda folder: "weights", "no safetensors file and is never opened"),
    "index": (lambda folder: INDEX, "no safetensors file and is never opened"),
    "upwards": (outside, "lies elsewhere"),
    "upwards and back": (lambda folder: f"../{folder.name}/model-00001.safetensors", "lies elsewhere"),
    "absolute": (absolute, "lies elsewhere"),
    "link": (link, "lies elsewhere"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_index_naming_pickle_or_outside_file_is_refused(folder: Path, case: str) -> None:
    make, message = BAD_FILES[case]
    move_first_tensor(folder, make(folder))
    for read in (load, tensor_files, refuse_pickles):
        with pytest.raises(WeightsError, match=message) as caught:
            read(folder)
        assert "\n" not in str(caught.value) and str(caught.value)[-1] == "."


def test_index_with_other_name_is_checked(folder: Path) -> None:
    move_first_tensor(folder, "pytorch_model.bin", "diffusion_pytorch_model.safetensors.index.json")
    with pytest.raises(WeightsError, match="never opened"):
        refuse_pickles(folder)


def test_pickled_index_beside_safetensors_is_not_read(folder: Path) -> None:
    move_first_tensor(folder, "pytorch_model.bin", "pytorch_model.bin.index.json")
    load(folder)


@pytest.mark.parametrize("named", ["adapter_model.bin", "pytorch_model.bin", "../model/model-00001.safetensors"])
def test_config_naming_pickle_or_outside_file_is_refused(folder: Path, named: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": named}))
    with pytest.raises(WeightsError, match="as a file of weights"):
        load(folder)


def test_pickled_adapter_is_refused(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"adapter_model\.bin is a pickle"):
        load(folder)


def test_links_of_hub_cache_are_followed(folder: Path, tmp_path: Path) -> None:
    """Files of a snapshot are links into the repository's blob store."""
    repository = tmp_path / "hub" / "models--a--b"
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        shutil.move(file, repository / "blobs" / str(number))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))
    assert load(snapshot).config.model_type == "llama"


@pytest.mark.parametrize("part", ["target", "codec", "drafters"])
@pytest.mark.parametrize("where", ["../other", "/somewhere"])
def test_manifest_naming_outside_parts_is_refused(tmp_path: Path, part: str, where: str) -> None:
    manifest = json.loads((embedded_models_dir() / "tiny-image" / "polydraft.json").read_text())
    manifest[part] = {"lm": where} if part == "drafters" else where
    (tmp_path / "polydraft.json").write_text(json.dumps(manifest))
    with pytest.raises(WeightsError, match="which lies elsewhere"):
        load_card(str(tmp_path))
