"""What NextStep's config.json says, under the names of either release.

config = NextStepConfig.read(read_json(file), file)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polydraft.core.errors import UnsupportedModel, WeightsError
from polydraft.core.folders.fields import Range, check_fields
from polydraft.core.folders.json_files import read_json
from polydraft.core.folders.sizes import check_layers

if TYPE_CHECKING:
    from transformers import Qwen2Config

MODEL_TYPE = "nextstep"
AUTOENCODER, PICKLE = "stepfun-ai/NextStep-1-f8ch16-Tokenizer", "checkpoint.pt"  # repository, and its file
BACKBONE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta",
)  # fmt: skip
OTHERWISE = {  # what a folder may say, and what it must say where it does
    "attention_bias": True, "o_attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "rope_scaling": None,
    "use_gen_pos_embed": False, "use_2d_rope": False, "use_sliding_window": False, "tie_word_embeddings": False,
}  # fmt: skip


SIZES = {
    *BACKBONE[:-2], "boi", "eoi", "image_placeholder_id", "num_channels", "latent_channels", "patch_size",
    "latent_patch_size", "genloss_width", "fm_head_dim", "genloss_depth", "fm_head_layers",
}  # fmt: skip
HINTS = dict.fromkeys(sorted(SIZES), Range(int, 1, 1 << 24)) | dict.fromkeys(BACKBONE[-2:], Range(float, 0))


@dataclass(frozen=True)
class NextStepConfig:
    """backbone: the language model's fields, as transformers' Qwen2Config takes them. release: "1" or "1.1".

    channels, patch: a token is a square of patch by patch latents. boi, eoi, placeholder: ids around and of a picture.
    """

    backbone: Mapping[str, Any]
    boi: int
    eoi: int
    placeholder: int
    channels: int = 16
    patch: int = 2
    head_width: int = 1536
    head_depth: int = 12
    release: str = "1.1"

    @property
    def hidden(self) -> int:
        return int(self.backbone["hidden_size"])

    @property
    def size(self) -> int:
        """Numbers a token."""
        return self.channels * self.patch**2

    @property
    def qwen2(self) -> Qwen2Config:
        """The language model: Qwen2's layers, under the names of a Llama with biases."""
        from transformers import Qwen2Config

        return Qwen2Config(**self.backbone, use_sliding_window=False, tie_word_embeddings=False)

    @staticmethod
    def read(fields: Mapping[str, Any], file: Path = Path("config.json")) -> NextStepConfig:
        """Of a config.json, `file` in errors. Raises UnsupportedModel, or WeightsError where fields are wrong."""
        for name, value in OTHERWISE.items():
            if name in fields and fields[name] != value:
                raise UnsupportedModel(
                    f"this NextStep says {name} {fields[name]!r}, which polydraft does not compute; "
                    f"use a release that says {value!r}, as NextStep-1 and NextStep-1.1 do."
                )
        missing = [name for name in (*BACKBONE, "boi", "eoi", "image_placeholder_id") if fields.get(name) is None]
        if missing:
            raise WeightsError(f"this NextStep's config.json says no {', '.join(missing)}; download it again.")
        check_fields(fields, HINTS, file)
        # Only NextStep-1.1 writes the head's shape under the names it was trained with.
        renamed = "genloss_width" in fields
        return NextStepConfig(
            {name: fields[name] for name in BACKBONE},
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
    """Return the shape of the NextStep in a folder.

    Raises:
        UnsupportedModel: it computes something that polydraft does not.
        WeightsError: its config.json is damaged, or asks for more layers than its files hold.
    """
    check_layers(folder)
    file = folder / "config.json"
    return NextStepConfig.read(read_json(file), file)
