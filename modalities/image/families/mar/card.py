"""Card of MAR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft.modalities.image.families.card import FamilyCard

MODEL_TYPE = "polydraft-mar"
GUIDANCE_SCALES = {"MAR-B": 2.9, "MAR-L": 3.0, "MAR-H": 3.2}  # with which its makers measure


def build_mar_manifest(folder: Path) -> dict[str, Any]:
    """Build the manifest of a MAR; its makers generate in 64 sets where speed counts, in 256 where nothing else does.

    Raises:
        WeightsError: its config.json is missing or another model's.
    """
    from polydraft.modalities.image.families.mar.config import PUBLISHED_CONFIGS, read_config

    config = read_config(folder)
    name = next((name for name, published in PUBLISHED_CONFIGS.items() if published == config), "MAR")
    return {
        "format": 1, "modality": "image", "tokens": "latents", "family": "mar", "drafters": {}, "codec": "vae",
        "defaults": {
            "method": "ar", "temperature": 1.0, "guidance_scale": GUIDANCE_SCALES.get(name, 1.0), "iterations": 64,
            "steps": 100,
        },
        "summary": f"{name}: generates ImageNet's classes as latents, a set at a time",
    }  # fmt: skip


MAR = FamilyCard(
    name="mar",
    title="MAR as `polydraft convert mar` leaves it",
    model_type=MODEL_TYPE,
    manifest_fn=build_mar_manifest,
    codec=("kl16", []),
)
