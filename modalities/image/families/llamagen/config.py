"""Configuration of LlamaGen folders."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import LlamaConfig

from polydraft.core.folders.fields import parse_settings
from polydraft.core.folders.json_files import read_settings

LARGEST_SIDES = {
    "llamagen_t2i": 32,
    "llamagen_c2i": 24,
}  # codes per side of the largest images, of captions and of classes
HEADS_BY_WIDTH = {
    768: 12,
    1024: 16,
    1280: 20,
    1536: 24,
    2048: 32,
    2560: 40,
    3200: 32,
    4096: 32,
}  # by width, as published


@dataclass(frozen=True)
class LlamaGenConfig:
    """Shape of a LlamaGen."""

    kind: str  # a key of LARGEST_SIDES
    width: int
    depth: int
    heads: int
    feed: int  # width of the feed-forward layers
    side: int  # codes per side
    codes: int = 16384
    prompt: int = 120  # positions of a caption or class, at most
    caption: int = 2048  # width of a caption's features
    classes: int = 1000  # without the empty one

    @staticmethod
    def read(folder: Path) -> LlamaGenConfig:
        """Read a folder's config.json.

        Raises:
            WeightsError: it is missing or malformed.
        """
        file = folder / "config.json"
        fields = {"kind" if name == "model_type" else name: value for name, value in read_settings(file).items()}
        return parse_settings(LlamaGenConfig, fields, file)

    @property
    def json_fields(self) -> dict[str, Any]:
        """Return the fields of config.json."""
        named = asdict(self)
        return {"model_type": named.pop("kind")} | named

    @property
    def reads_text(self) -> bool:
        return self.kind == "llamagen_t2i"

    @property
    def llama(self) -> LlamaConfig:
        """Return the backbone's configuration; its rotary positions are those of `network.GridRotaryEmbedding`."""
        return LlamaConfig(
            vocab_size=self.codes, hidden_size=self.width, intermediate_size=self.feed, num_hidden_layers=self.depth,
            num_attention_heads=self.heads, max_position_embeddings=self.prompt + self.side**2, rms_norm_eps=1e-5,
            tie_word_embeddings=False, pad_token_id=None, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
