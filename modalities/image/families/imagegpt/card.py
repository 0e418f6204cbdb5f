"""Card of ImageGPT."""

from __future__ import annotations

from polydraft.modalities.image.families.card import FamilyCard

IMAGEGPT = FamilyCard(
    name="imagegpt",
    title="ImageGPT",
    summary="generates 32x32 pixels without a prompt, from all colours (transformers' example: the best 40)",
    licence="Apache-2.0",
    defaults={"temperature": 1.0},
    checkpoints={"openai/imagegpt-small": 0.3, "openai/imagegpt-medium": 1.8, "openai/imagegpt-large": 5.5},
    implementation="imagegpt.family:ImageGPT",
)
