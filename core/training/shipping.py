"""Weights as models ship: bf16, those that are tied once."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def shipped(model: nn.Module) -> dict[str, Tensor]:
    """State of `model` to be saved."""
    first: dict[int, str] = {}
    state = model.state_dict()
    for name, tensor in state.items():
        first.setdefault(tensor.data_ptr(), name)
    return {name: state[name].detach().to(torch.bfloat16).contiguous() for name in first.values()}
