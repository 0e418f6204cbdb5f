"""`polydraft convert mar`: its folder; wrong files are refused in one sentence and nothing is written."""

from __future__ import annotations

import argparse
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from polydraft.apps.cli.main import app
from polydraft.core.errors import OutputUnwritable
from polydraft.modalities.image.families.mar import convert as module
from polydraft.modalities.image.families.mar.network import MAR

from .conftest import TINY, tiny_mar
from .mar_generation import GenerationSettings, draw

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def tiny_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.HEADS_BY_WIDTH, TINY.width, TINY.heads)


def checkpoint(folder: Path, averaged: Any = None, **other: Any) -> Path:
    """Write a checkpoint as the published training does: trained and averaged weights, options and an optimizer."""
    path = folder / "checkpoint-last.pth"
    weights = tiny_mar().state_dict() if averaged is None else averaged
    trained = {name: tensor + 1 for name, tensor in tiny_mar().state_dict().items()}
    options = argparse.Namespace(model="mar_base", lr=1e-4)
    torch.save({"model": trained, "model_ema": weights, "epoch": 799, "args": options} | other, path)
    return path


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["convert", "mar", *map(str, arguments)])


def refused(done: Any, *words: str) -> None:
    lines = done.stderr.splitlines()
    assert done.exit_code == 2 and done.stdout == "", (done.exit_code, done.output)
    assert len(lines) == 1 and lines[0].startswith("error: ") and lines[0].endswith("."), done.stderr
    assert all(word in lines[0] for word in words), lines[0]


def test_converted_mar_generates_the_same(tmp_path: Path) -> None:
    done = run(checkpoint(tmp_path), "--out", tmp_path / "deep" / "mar")
    assert done.exit_code == 0 and "2 + 2 blocks of 16" in done.stdout, done.output
    made = tmp_path / "deep" / "mar"
    assert sorted(path.name for path in made.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in made.parent.iterdir()] == ["mar"]
    loaded, original = MAR.from_folder(made, CPU, torch.float32), tiny_mar()
    assert loaded.config == TINY
    for name, tensor in original.state_dict().items():
        assert loaded.state_dict()[name].equal(tensor), name
    form = GenerationSettings(scale=2.0)
    one, other = (draw(form.method(model), form.prompts([1], [5])).tokens for model in (loaded, original))
    assert one.equal(other)


def test_pickled_code_is_refused_and_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    path = checkpoint(tmp_path, optimizer=Trap())
    refused(run(path, "--out", tmp_path / "mar"), "cannot be read", "checkpoint-last.pth")
    assert sorted(other.name for other in tmp_path.iterdir()) == ["checkpoint-last.pth"]


def wrong_shape(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return weights | {"mask_token": torch.zeros(1, 1, 3)}


def one_less(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if name != "decoder_blocks.1.mlp.fc2.bias"}


@pytest.mark.parametrize(
    ("averaged", "words"),
    [
        (lambda weights: wrong_shape(weights), ("1 tensors", "mask_token")),
        (lambda weights: one_less(weights), ("1 tensors", "decoder_blocks.1.mlp.fc2.bias")),
        (lambda weights: {"a": torch.zeros(3)}, ("another model than MAR",)),
        (lambda weights: {"a": "text"}, ("no weights under model_ema",)),
        (lambda weights: tiny_mar(replace(TINY, width=8)).state_dict(), ("width 8", "MAR-B, MAR-L, MAR-H")),
    ],
)
def test_other_weights_are_refused(tmp_path: Path, averaged: Any, words: tuple[str, ...]) -> None:
    path = checkpoint(tmp_path, averaged(tiny_mar().state_dict()))
    refused(run(path, "--out", tmp_path / "mar"), *words)
    assert sorted(other.name for other in tmp_path.iterdir()) == ["checkpoint-last.pth"]


def test_files_that_are_no_checkpoints_are_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "file.pth", tmp_path / "mar"
    refused(run(path, "--out", out), "is not there")
    refused(run(tmp_path, "--out", out), "cannot be read")
    for content in (b"", b"plain text", pickle.dumps({"model_ema": {}}), checkpoint(tmp_path).read_bytes()[:5000]):
        path.write_bytes(content)
        refused(run(path, "--out", out), "cannot be read")
    torch.save({"model": {}}, path)
    refused(run(path, "--out", out), "no weights under model_ema")
    torch.save([1, 2], path)
    refused(run(path, "--out", out), "no weights under model_ema")
    assert not out.exists()


def test_nothing_is_overwritten_or_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = checkpoint(tmp_path), tmp_path / "mar"
    out.mkdir()
    refused(run(path, "--out", out), "already there")
    refused(run(path, "--out", path / "mar"), "cannot be written")

    def full(*arguments: Any) -> None:
        Path(arguments[1]).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(OutputUnwritable, match="No space left"):
        module.convert(path, tmp_path / "other")
    assert sorted(other.name for other in tmp_path.iterdir()) == ["checkpoint-last.pth", "mar"]
