"""Weights that lie in a mapped file get memory of their own, and a file changed in place changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from polydraft.core.model import mapped
from polydraft.core.model.mapped import copy_mapped, lies_within, mapped_ranges

from ...mapped import mapped_files


def tied(folder: Path) -> nn.Module:
    """Return a model of three parameters, two of them one, that lie where the loader put them."""
    save_file({"weight": torch.arange(4096.0).view(64, 64), "scale": torch.ones(3)}, folder / "model.safetensors")
    found = load_file(folder / "model.safetensors")
    model = nn.ModuleDict({name: nn.Linear(64, 64, bias=False) for name in ("inside", "head")})
    model["inside"].weight = model["head"].weight = nn.Parameter(found["weight"], requires_grad=False)
    model["inside"].register_buffer("scale", found["scale"])
    return model


def test_file_changed_in_place_changes_no_copied_weights(tmp_path: Path) -> None:
    model = tied(tmp_path)
    copy_mapped(model)
    assert not mapped_files(tmp_path)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.write(bytes(os.path.getsize(file.name)))
        file.truncate(10)
    weight = model["inside"].weight
    assert torch.equal(weight, torch.arange(4096.0).view(64, 64)) and torch.equal(model["inside"].scale, torch.ones(3))
    assert weight is model["head"].weight


def test_memory_of_its_own_is_not_copied(tmp_path: Path) -> None:
    model, other = tied(tmp_path), nn.Linear(3, 3)
    before = other.weight.data_ptr()
    copy_mapped(model, other)
    assert other.weight.data_ptr() == before


def test_all_memory_counts_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mapped, "MAPS", tmp_path / "none")
    assert lies_within(torch.ones(3), *mapped_ranges())
    assert not lies_within(torch.ones(0), *mapped_ranges()) and not lies_within(
        torch.ones(3, device="meta"), *mapped_ranges()
    )
