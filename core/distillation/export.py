"""Export of weights: bf16 state dicts, tied weights once; files that are complete or not there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn


def export_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of `model` in bf16, with tied weights under their first name only."""
    first_names: dict[int, str] = {}
    state = model.state_dict()
    for name, tensor in state.items():
        first_names.setdefault(tensor.data_ptr(), name)  # tied weights have the same address
    return {name: state[name].detach().to(torch.bfloat16).contiguous() for name in first_names.values()}


@contextmanager
def atomic_dir(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder inside `folder`, whose files move to `folder` if the block succeeds.

    So every file in `folder` is complete; if the block raises, nothing in `folder` changes.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as temporary:
        yield Path(temporary)
        for file in sorted(Path(temporary).iterdir()):
            file.replace(folder / file.name)
