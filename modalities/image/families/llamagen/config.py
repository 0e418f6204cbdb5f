"""The shape of a LlamaGen, as its folder says it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import LlamaConfig

from polydraft.core.folders.fields import settings_of
from polydraft.core.folders.json_files import read_settings

KINDS = {"llamagen_t2i": 32, "llamagen_c2i": 24}  # of captions, of classes; codes a side in their largest pictures
HEADS = {768: 12, 1024: 16, 1280: 20, 1536: 24, 2048: 32, 2560: 40, 3200: 32, 4096: 32}  # by width, as published


@dataclass(frozen=True)
class LlamaGenConfig:
    """kind: one of KINDS; feed: width between a layer's feed-forward products; side: codes a side; prompt: most places
    that a caption or class takes; caption: width of a caption's features; classes: without the empty one."""

    kind: str
    width: int
    depth: int
    heads: int
    feed: int
    side: int
    codes: int = 16384
    prompt: int = 120
    caption: int = 2048
    classes: int = 1000

    @staticmethod
    def read(folder: Path) -> LlamaGenConfig:
        """Of a folder's config.json; raises WeightsError."""
        file = folder / "config.json"
        fields = {"kind" if name == "model_type" else name: value for name, value in read_settings(file).items()}
        return settings_of(LlamaGenConfig, fields, file)

    @property
    def fields(self) -> dict[str, Any]:
        """What config.json says."""
        named = asdict(self)
        return {"model_type": named.pop("kind")} | named

    @property
    def reads_text(self) -> bool:
        return self.kind == "llamagen_t2i"

    @property
    def llama(self) -> LlamaConfig:
        """The backbone's; its rotary positions are `network.GridRotary`."""
        return LlamaConfig(
            vocab_size=self.codes, hidden_size=self.width, intermediate_size=self.feed, num_hidden_layers=self.depth,
            num_attention_heads=self.heads, max_position_embeddings=self.prompt + self.side**2, rms_norm_eps=1e-5,
            tie_word_embeddings=False, pad_token_id=None, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
