"""Memory of head training: no more tensors are alive at once than a step needs, even if all features do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polydraft.apps.data import samples, user_prompts
from polydraft.apps.train import answers, drafter
from polydraft.modalities import loading

from ...live_tensors import LiveTensors
from .conftest import TEXT, VISION, llava

WIDTH, PICTURES, GROUPS, TOGETHER = 128, 4, 24, 2


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a target with wide hidden states and hundreds of positions that is cheap to compute."""
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("wide")
    text = TEXT | {"hidden_size": WIDTH, "num_hidden_layers": 2, "max_position_embeddings": 1024}
    llava(folder, text, VISION | {"patch_size": 2})
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for place in range(PICTURES):
        noise = np.random.default_rng(place).integers(0, 255, (56, 56, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{place}.png")
    return folder


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit training to two tokens an answer, two rows at a time, one row a step and a fixed number of answers."""
    prompts = user_prompts.UserPrompts.prompts
    monkeypatch.setattr(
        user_prompts.UserPrompts, "prompts", lambda self, index: prompts(self, index) if index < GROUPS else []
    )
    monkeypatch.setattr(user_prompts, "MOST", 2)
    monkeypatch.setattr(drafter, "DRAW", 1e6)
    monkeypatch.setattr(drafter, "ROWS", 1)
    for module in (answers, user_prompts, samples):
        monkeypatch.setattr(module, "TOGETHER", TOGETHER)


@pytest.mark.usefixtures("few")
def test_head_training_peak_memory_is_below_all_features(
    wide: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All features are on disk; only the target, the student and the rows of a step are alive at once."""
    load, features = loading.load, []
    remember = drafter.Samples.remember
    monkeypatch.setattr(loading, "load", lambda name: load(name, dtype="float32"))
    monkeypatch.setattr(drafter.Samples, "remember", lambda self: (features.append(self.bytes_seen), remember(self)))
    with LiveTensors() as tensors:
        report = drafter.run(str(wide), "eagle", tmp_path / "out", 1e-3, data=str(photos), cache=20)
    assert report.steps >= 1 and report.features == "cached on disk"
    assert tensors.peak < features[0] / 2
    assert not (tmp_path / "out" / "samples" / "features").exists()
    assert "peak memory" in (tmp_path / "out" / "README.md").read_text()
