"""Weights in a memory-mapped file are copied, so that a file changed in place changes no results."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from polydraft.core.model import mapped_files as mapped
from polydraft.core.model.mapped_files import copy_mapped, lies_within, mapped_ranges

from ...mapped import mapped_files


def tied_model(folder: Path) -> nn.Module:
    """Return a model of two tied weights and a buffer, all in a mapped file."""
    save_file({"weight": torch.arange(4096.0).view(64, 64), "scale": torch.ones(3)}, folder / "model.safetensors")
    tensors = load_file(folder / "model.safetensors")
    model = nn.ModuleDict({name: nn.Linear(64, 64, bias=False) for name in ("inside", "head")})
    model["inside"].weight = model["head"].weight = nn.Parameter(tensors["weight"], requires_grad=False)
    model["inside"].register_buffer("scale", tensors["scale"])
    return model


def test_copy_mapped_survives_overwriting_the_file(tmp_path: Path) -> None:
    model = tied_model(tmp_path)
    copy_mapped(model)
    assert not mapped_files(tmp_path)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.write(bytes(os.path.getsize(file.name)))
        file.truncate(10)
    weight = model["inside"].weight
    assert torch.equal(weight, torch.arange(4096.0).view(64, 64)) and torch.equal(model["inside"].scale, torch.ones(3))
    assert weight is model["head"].weight


def test_copy_mapped_ordinary_memory_is_not_copied(tmp_path: Path) -> None:
    model, other = tied_model(tmp_path), nn.Linear(3, 3)
    before = other.weight.data_ptr()
    copy_mapped(model, other)
    assert other.weight.data_ptr() == before


def test_lies_within_without_maps_is_always_true(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mapped, "MAPS", tmp_path / "none")
    assert lies_within(torch.ones(3), *mapped_ranges())
    assert not lies_within(torch.ones(0), *mapped_ranges()) and not lies_within(
        torch.ones(3, device="meta"), *mapped_ranges()
    )
