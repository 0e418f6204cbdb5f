"""The contents of codes are counted in rendered scenes, cell by cell."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from polydraft.apps.lab.recipes.image import code_counts as looking
from polydraft.apps.lab.training.checkpoint import save
from polydraft.modalities.image import code_contents
from polydraft.modalities.image.vq import VQConfig, VQTokenizer
from polydraft.modalities.world.glyphs import KINDS


def test_threshold_counts_marks_backgrounds_and_kinds() -> None:
    counts = np.zeros((1 + len(KINDS), 4), np.int64)
    counts[0, 0], counts[1:6, 0] = 10**6, 10**4  # of grounds and of things
    counts[0, 1], counts[3, 1] = 10, 1  # a ground's, and once on a thing
    counts[0, 2], counts[5, 2] = 1, 200  # a thing's, and once beside it
    shown = looking.threshold_counts(counts)
    assert shown[0].tolist() == [True, True, False, False]
    assert shown[3].tolist() == [True, False, False, False] and shown[5].tolist() == [True, False, True, False]
    assert shown[6:].all()  # nobody saw these


def test_count_codes_counts_every_cell_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save(VQTokenizer(VQConfig(64, 4, 16, 16, 1)), tmp_path)
    counts = looking.count_codes(tmp_path, number=looking.TOGETHER, seed=3)
    scenes = looking.sample_scenes(np.random.default_rng(3))
    cells = sum(scene_cells(scene) for scene in scenes)
    assert counts.sum() == 256 * len(scenes) and counts[1:].sum() == cells


def test_run_writes_table_once_per_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    save(VQTokenizer(VQConfig(64, 4, 16, 16, 1)), tmp_path)
    looking.run(tmp_path, seed=3, minutes=0)
    assert code_contents.load(tmp_path, 64) is None
    monkeypatch.setattr(looking, "FEWEST", looking.TOGETHER)
    looking.run(tmp_path, number=looking.TOGETHER, seed=3)
    table = code_contents.load(tmp_path, 64)
    assert table is not None
    assert torch.equal(table, looking.threshold_counts(looking.count_codes(tmp_path, number=looking.TOGETHER, seed=3)))
    looking.run(tmp_path, number=2 * looking.TOGETHER, seed=4)  # of the same weights
    assert torch.equal(table, code_contents.load(tmp_path, 64))
    os.utime(tmp_path / "model.safetensors", ns=(2**62, 2**62))
    looking.run(tmp_path, number=2 * looking.TOGETHER, seed=4)
    assert not torch.equal(table, code_contents.load(tmp_path, 64))


def scene_cells(scene) -> int:
    """Cells of its things, which never lie on each other."""
    return sum(int(looking.object_cells([thing]).sum()) for thing in scene.objects)
