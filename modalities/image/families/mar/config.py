"""Shape of a MAR, and the shapes that its makers published.

config = read_config(folder)
PUBLISHED_CONFIGS["MAR-B"]
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from polydraft.core.folders.fields import parse_settings
from polydraft.core.folders.json_files import read_settings
from polydraft.modalities.image.families.mar.card import MODEL_TYPE


@dataclass(frozen=True)
class MARConfig:
    """Shape of a MAR; encoder and decoder have `depth` blocks of `width` each, the head has its own."""

    width: int
    depth: int
    heads: int
    head_width: int
    head_depth: int
    side: int = 16  # tokens per side of the square image
    channels: int = 16
    patch: int = 1  # latents per side of a token
    classes: int = 1000
    buffer: int = 64  # positions that hold the class
    model_type: str = MODEL_TYPE

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of an image."""
        return self.side**2

    @property
    def token_dim(self) -> int:
        """Return the number of values of a token."""
        return self.channels * self.patch**2


def read_config(folder: Path) -> MARConfig:
    """Read the shape of the MAR in a folder.

    Raises:
        WeightsError: its config.json is missing or another model's.
    """
    file = folder / "config.json"
    return parse_settings(MARConfig, read_settings(file), file)


PUBLISHED_CONFIGS = {
    "MAR-B": MARConfig(768, 12, 12, 1024, 6),
    "MAR-L": MARConfig(1024, 16, 16, 1280, 8),
    "MAR-H": MARConfig(1280, 20, 16, 1536, 12),
}
