"""Weights as models ship: bf16, those that are tied once; files that are whole or not there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn


def shipped(model: nn.Module) -> dict[str, Tensor]:
    """State of `model` to be saved."""
    first: dict[int, str] = {}
    state = model.state_dict()
    for name, tensor in state.items():
        first.setdefault(tensor.data_ptr(), name)
    return {name: state[name].detach().to(torch.bfloat16).contiguous() for name in first.values()}


@contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """A folder inside `folder`; what was written to it takes its place in `folder` when all of it is whole."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as made:
        yield Path(made)
        for file in sorted(Path(made).iterdir()):
            file.replace(folder / file.name)
