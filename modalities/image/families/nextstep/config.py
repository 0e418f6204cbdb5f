"""Configuration of NextStep, under the names of either release.

config = NextStepConfig.read(read_json(file), file)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polydraft.core.errors import UnsupportedModel, WeightsError
from polydraft.core.folders.fields import NumberRange, check_fields
from polydraft.core.folders.json_files import read_json
from polydraft.core.folders.sizes import check_layers

if TYPE_CHECKING:
    from transformers import Qwen2Config

BACKBONE_FIELDS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta",
)  # fmt: skip
REQUIRED_FIELDS: dict[str, Any] = {  # of config.json, where they are there
    "attention_bias": True, "o_attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "rope_scaling": None,
    "use_gen_pos_embed": False, "use_2d_rope": False, "use_sliding_window": False, "tie_word_embeddings": False,
}  # fmt: skip


SIZE_FIELDS = {
    *BACKBONE_FIELDS[:-2], "boi", "eoi", "image_placeholder_id", "num_channels", "latent_channels", "patch_size",
    "latent_patch_size", "genloss_width", "fm_head_dim", "genloss_depth", "fm_head_layers",
}  # fmt: skip
FIELD_RANGES = dict.fromkeys(sorted(SIZE_FIELDS), NumberRange(int, 1, 1 << 24)) | dict.fromkeys(
    BACKBONE_FIELDS[-2:], NumberRange(float, 0)
)


@dataclass(frozen=True)
class NextStepConfig:
    """Shape of a NextStep."""

    backbone: Mapping[str, Any]  # the language model's fields, as transformers' Qwen2Config takes them
    boi: int  # id that begins an image
    eoi: int  # id that ends an image
    placeholder: int  # id of an image's tokens
    channels: int = 16  # of latents
    patch: int = 2  # latents per side of a token
    head_width: int = 1536
    head_depth: int = 12
    release: str = "1.1"  # or "1"

    @property
    def hidden_size(self) -> int:
        """Return the width of the backbone."""
        return int(self.backbone["hidden_size"])

    @property
    def token_dim(self) -> int:
        """Return the number of values of a token."""
        return self.channels * self.patch**2

    @property
    def qwen2(self) -> Qwen2Config:
        """Return the language model's configuration: Qwen2's layers, under the names of a Llama with biases."""
        from transformers import Qwen2Config

        return Qwen2Config(**self.backbone, use_sliding_window=False, tie_word_embeddings=False)

    @staticmethod
    def read(fields: Mapping[str, Any], file: Path = Path("config.json")) -> NextStepConfig:
        """Parse a config.json.

        Args:
            fields (Mapping[str, Any]): its content.
            file (Path): how errors call it.

        Raises:
            UnsupportedModel: the model computes something that polydraft does not.
            WeightsError: fields are missing or malformed.
        """
        for name, value in REQUIRED_FIELDS.items():
            if name in fields and fields[name] != value:
                raise UnsupportedModel(
                    f"this NextStep says {name} {fields[name]!r}, which polydraft does not compute; "
                    f"use a release that says {value!r}, as NextStep-1 and NextStep-1.1 do."
                )
        missing = [
            name for name in (*BACKBONE_FIELDS, "boi", "eoi", "image_placeholder_id") if fields.get(name) is None
        ]
        if missing:
            raise WeightsError(f"this NextStep's config.json says no {', '.join(missing)}; download it again.")
        check_fields(fields, FIELD_RANGES, file)
        # Only NextStep-1.1 writes the head's shape under the names it was trained with.
        renamed = "genloss_width" in fields
        return NextStepConfig(
            {name: fields[name] for name in BACKBONE_FIELDS},
            fields["boi"],
            fields["eoi"],
            fields["image_placeholder_id"],
            fields.get("num_channels" if renamed else "latent_channels", 16),
            fields.get("patch_size" if renamed else "latent_patch_size", 2),
            fields.get("genloss_width" if renamed else "fm_head_dim", 1536),
            fields.get("genloss_depth" if renamed else "fm_head_layers", 12),
            "1.1" if renamed else "1",
        )


def read_config(folder: Path) -> NextStepConfig:
    """Read the shape of the NextStep in a folder.

    Raises:
        UnsupportedModel: the model computes something that polydraft does not.
        WeightsError: its config.json is damaged, or asks for more layers than its files hold.
    """
    check_layers(folder)
    file = folder / "config.json"
    return NextStepConfig.read(read_json(file), file)
