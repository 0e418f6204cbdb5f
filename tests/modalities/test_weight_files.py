"""A model's files may be overwritten or cut short once it is loaded: its answers stay, and so does the process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from polydraft.core.errors import WeightsError
from polydraft.modalities.loading import embedded, load

from ..mapped import mapped_files

METHODS = ("ar", "hydra", "draft", "eagle")  # of a target alone, of networks that read it, and of another model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of tiny-vlm that may be spoilt."""
    return Path(shutil.copytree(embedded() / "tiny-vlm", tmp_path / "mine"))


def test_weights_overwritten_in_place_change_no_answer(folder: Path) -> None:
    pipe = load(str(folder))
    picture = Image.new("RGB", (64, 64))

    def answer(method: str) -> list[int]:
        return pipe(picture, "What is this?", seed=3, method=method, max_new_tokens=12).tokens.tolist()

    before = {method: answer(method) for method in METHODS}
    assert not mapped_files(folder)
    for file in folder.rglob("*.safetensors"):
        with file.open("r+b") as weights:
            weights.write(bytes(file.stat().st_size))
            weights.truncate(100)
    assert {method: answer(method) for method in METHODS} == before


def test_weights_cut_short_are_refused_at_load(folder: Path) -> None:
    file = folder / "target" / "model.safetensors"
    with file.open("r+b") as weights:
        weights.truncate(file.stat().st_size // 2)
    with pytest.raises(WeightsError, match="damaged"):
        load(str(folder))
