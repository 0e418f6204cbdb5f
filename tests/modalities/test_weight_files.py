"""Weights are safetensors of the model's own folder, whatever its index, its configuration or its links say."""

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
from polydraft.modalities.hub import refuse_pickles, stored
from polydraft.modalities.loading import card, causal_lm, embedded

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A language model in two shards, and a pickle and a decoy beside; opening a pickle fails the test."""
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    made = shutil.copytree(embedded() / "tiny-image" / "target", tmp_path / "model")
    weights = load_file(made / "model.safetensors")
    (made / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {"model-00001.safetensors": names[::2], "model-00002.safetensors": names[1::2]}
    for shard, inside in shards.items():
        save_file({name: weights[name] for name in inside}, made / shard, {"format": "pt"})
    torch.save(weights, made / "pytorch_model.bin")
    write_index(made, {name: shard for shard, inside in shards.items() for name in inside})
    return made


def write_index(folder: Path, where: dict[str, str], name: str = INDEX) -> None:
    (folder / name).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))


def moved(folder: Path, to: str, name: str = INDEX) -> None:
    """Let the index say that the first tensor is in another file."""
    where = json.loads((folder / INDEX).read_text())["weight_map"]
    write_index(folder, where | {min(where): to}, name)


def load(folder: Path) -> Any:
    return causal_lm(folder, torch.device("cpu"), torch.float32)


def test_sharded_model_is_loaded(folder: Path) -> None:
    assert load(folder).config.model_type == "llama" and set(stored(folder).values()) == {
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


LEADS: dict[str, tuple[Callable[[Path], str], str]] = {
    "pickle": (lambda folder: "pytorch_model.bin", "no safetensors file and is never opened"),
    "other ending": (lambda folder: "weights", "no safetensors file and is never opened"),
    "index": (lambda folder: INDEX, "no safetensors file and is never opened"),
    "upwards": (outside, "lies elsewhere"),
    "upwards and back": (lambda folder: f"../{folder.name}/model-00001.safetensors", "lies elsewhere"),
    "absolute": (absolute, "lies elsewhere"),
    "link": (link, "lies elsewhere"),
}


@pytest.mark.parametrize("lead", LEADS)
def test_index_that_leads_to_pickle_or_outside_is_refused(folder: Path, lead: str) -> None:
    make, says = LEADS[lead]
    moved(folder, make(folder))
    for read in (load, stored, refuse_pickles):
        with pytest.raises(WeightsError, match=says) as caught:
            read(folder)
        assert "\n" not in str(caught.value) and str(caught.value)[-1] == "."


def test_index_of_another_name_is_checked_too(folder: Path) -> None:
    moved(folder, "pytorch_model.bin", "diffusion_pytorch_model.safetensors.index.json")
    with pytest.raises(WeightsError, match="never opened"):
        refuse_pickles(folder)


def test_pickled_index_beside_safetensors_is_not_read(folder: Path) -> None:
    moved(folder, "pytorch_model.bin", "pytorch_model.bin.index.json")
    load(folder)


@pytest.mark.parametrize("named", ["adapter_model.bin", "pytorch_model.bin", "../model/model-00001.safetensors"])
def test_configuration_that_leads_to_pickle_or_outside_is_refused(folder: Path, named: str) -> None:
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
    """A snapshot there is links into the repository's store."""
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
def test_card_that_names_parts_outside_is_refused(tmp_path: Path, part: str, where: str) -> None:
    said = json.loads((embedded() / "tiny-image" / "polydraft.json").read_text())
    (tmp_path / "polydraft.json").write_text(json.dumps(said | {part: {"lm": where} if part == "drafters" else where}))
    with pytest.raises(WeightsError, match="which lies elsewhere"):
        card(str(tmp_path))
