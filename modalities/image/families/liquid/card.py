"""Card of Liquid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.modalities.image.families.card import FamilyCard
from polydraft.modalities.image.families.chameleon.card import VQGAN_CODEC, VQGAN_FOLDER, find_vqgan

VOCAB_SIZE = 256_000 + 8192  # text ids of Gemma, and codes


def is_liquid(folder: Path, fields: dict[str, Any]) -> bool:
    """Return whether a Gemma generates images: it has a VQGAN beside it, or ids for its codes."""
    return fields.get("model_type") == "gemma" and (
        (folder / VQGAN_FOLDER).is_dir() or fields.get("vocab_size") == VOCAB_SIZE
    )


LIQUID = FamilyCard(
    name="liquid",
    title="Liquid",
    summary="generates from free text, 512x512, from codes alone (its makers: from words too)",
    licence="Gemma Terms of Use; its VQGAN Chameleon Research License (no commercial use); code MIT",
    defaults={"temperature": 0.99, "top_k": 4096, "top_p": 0.96, "guidance_scale": 7.0},
    checkpoints={"Junfeng5/Liquid_V1_7B": 17.1},
    implementation="liquid.family:Liquid",
    matches=is_liquid,
    codec=VQGAN_CODEC,
    codec_folder=find_vqgan,
)
