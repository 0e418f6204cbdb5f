"""The shape of a MAR, and those its makers published.

config = read_config(folder)
SIZES["MAR-B"]
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from polydraft.core.folders.fields import settings_of
from polydraft.core.folders.json_files import read_settings

MODEL_TYPE = "polydraft-mar"


@dataclass(frozen=True)
class MARConfig:
    """Encoder and decoder have `depth` blocks of `width` each; the head has its own.

    side: tokens a side of the square picture. buffer: places that hold the class. patch: latents a side of a token.
    """

    width: int
    depth: int
    heads: int
    head_width: int
    head_depth: int
    side: int = 16
    channels: int = 16
    patch: int = 1
    classes: int = 1000
    buffer: int = 64
    model_type: str = MODEL_TYPE

    @property
    def length(self) -> int:
        """Tokens a picture."""
        return self.side**2

    @property
    def size(self) -> int:
        """Numbers a token."""
        return self.channels * self.patch**2


def read_config(folder: Path) -> MARConfig:
    """Return the shape of the MAR in a folder.

    Raises:
        WeightsError: its config.json is missing or another model's.
    """
    file = folder / "config.json"
    return settings_of(MARConfig, read_settings(file), file)


SIZES = {
    "MAR-B": MARConfig(768, 12, 12, 1024, 6),
    "MAR-L": MARConfig(1024, 16, 16, 1280, 8),
    "MAR-H": MARConfig(1280, 20, 16, 1536, 12),
}
SCALES = {"MAR-B": 2.9, "MAR-L": 3.0, "MAR-H": 3.2}  # guidance their makers measure with
