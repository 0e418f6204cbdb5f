"""`~WxH`: the nearest size that a model generates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image.base import TextToImagePipeline, grid_of


@dataclass(frozen=True)
class Sizes:
    """Stand-in for a pipeline that generates any multiples of a token's side, as far as its context goes."""

    context: int
    token_side: int = 16
    dimensions: str = "256x256"

    def with_size(self, size: str) -> Any:
        grid_of(size, self.token_side, self.context, "the model", self.dimensions)
        return Sizes(self.context, self.token_side, size)


@pytest.mark.parametrize(
    ("context", "size", "drawn"),
    [
        (5000, "1024x1024", "1024x1024"), (1025, "1024x1024", "512x512"), (1025, "1792x1024", "672x384"),
        (1025, "1024x1536", "416x624"), (300, "300x200", "304x192"), (2, "1024x1024", "256x256"),
    ],
)  # fmt: skip
def test_nearest_size_is_largest_that_fits(context: int, size: str, drawn: str) -> None:
    pipe: Any = Sizes(context)
    assert TextToImagePipeline.with_nearest_size(pipe, size).dimensions == drawn


def test_nearest_of_malformed_size_is_refused() -> None:
    pipe: Any = Sizes(300)
    with pytest.raises(InvalidArgument, match="size=big"):
        TextToImagePipeline.with_nearest_size(pipe, "big")
