"""Tiny MAR with random weights that are large enough to matter."""

from __future__ import annotations

import pytest
import torch

from polydraft.modalities.image.families.mar.config import MARConfig
from polydraft.modalities.image.families.mar.network import MAR

TINY = MARConfig(16, 2, 2, 12, 2, side=3, channels=4, classes=5, buffer=3)


def tiny_mar(config: MARConfig = TINY, seed: int = 0) -> MAR:
    torch.manual_seed(seed)
    model = MAR(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.copy_(torch.randn(parameter.shape) * (0.2 if name.startswith("diffloss") else 0.4))
    return model


@pytest.fixture(scope="session")
def mar() -> MAR:
    return tiny_mar()
