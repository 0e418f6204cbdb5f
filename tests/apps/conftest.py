"""Models that tests of several applications share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ..modalities.vlm.conftest import smolvlm


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a SmolVLM with random weights, which has no drafter."""
    folder = tmp_path_factory.mktemp("smolvlm")
    torch.manual_seed(3)
    smolvlm(folder)
    return folder
