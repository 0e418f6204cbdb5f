"""torchmetrics, where it is installed (`pip install 'polydraft[bench]'`), and its FID of features that come in batches.

metric = Frechet(512)
metric.stay(theirs); metric.feed(ours); metric.distance()
metric.forget(); metric.feed(others); metric.distance()
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from polydraft.core.checks.extras import pip_install
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import PolydraftError


class MetricsMissing(PolydraftError, ImportError):
    """torchmetrics, or a package it needs, is not installed."""


class Features(Protocol):
    """Network whose features images are compared by.

    `label` is its header in tables, `about` names the weights, `width` is the number of features per image.
    """

    label: str
    about: str
    width: int

    def __call__(self, pictures: Sequence[Image.Image]) -> Tensor:
        """Return features `[N, width]` float64 on the CPU."""


def package() -> ModuleType:
    """torchmetrics; raises MetricsMissing."""
    try:
        import torchmetrics
        import torchmetrics.functional.multimodal
        import torchmetrics.image.fid
    except (ImportError, OSError, RuntimeError, AttributeError) as error:  # torchvision of another torch raises any
        reason = str(error).strip().partition("\n")[0].rstrip(".")[:100] or type(error).__name__
        raise system_error(error, "torchmetrics cannot be imported") or MetricsMissing(
            f"CLIP scores and Fréchet distances need the package torchmetrics ({reason}); install it with: "
            f"{pip_install('bench')}."
        ) from error
    return torchmetrics


def pixels(picture: Image.Image) -> Tensor:
    """Return an image as `[3, H, W]` uint8."""
    return torch.from_numpy(np.array(picture.convert("RGB"))).movedim(-1, 0)


class Given(nn.Module):
    """Feature extractor for torchmetrics that passes precomputed features through, shared by every distance."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_features = width

    def forward(self, features: Tensor) -> Tensor:
        """Return the features `[B, width]` unchanged."""
        return features


class Frechet:
    """Fréchet distance of pictures that stay to others in turn (Heusel et al. 2017, arXiv 1706.08500).

    Features `[B, width]` are summed as they come: kept are `[width]` and `[width, width]` float64 of either side.
    """

    def __init__(self, width: int) -> None:
        self.metric: Any = package().image.fid.FrechetInceptionDistance(Given(width), reset_real_features=False)

    def stay(self, features: Tensor) -> None:
        """More of what all others are compared with."""
        self.metric.update(features, real=True)

    def feed(self, features: Tensor) -> None:
        """More of what is compared now."""
        self.metric.update(features, real=False)

    def forget(self) -> None:
        """Begin with others."""
        self.metric.reset()

    def distance(self) -> float:
        """Return the distance of at least two images a side."""
        return float(self.metric.compute())
