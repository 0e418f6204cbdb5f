"""Card of Janus and Janus-Pro."""

from __future__ import annotations

from polydraft.modalities.image.families.card import FamilyCard

JANUS = FamilyCard(
    name="janus",
    title="Janus and Janus-Pro",
    summary="generates from free text, 384x384, from all codes as its makers do (transformers: the best 50)",
    licence="DeepSeek Model License (commercial use allowed, with use restrictions); code MIT",
    defaults={"temperature": 1.0, "guidance_scale": 5.0},
    checkpoints={"deepseek-community/Janus-Pro-1B": 4.2, "deepseek-community/Janus-Pro-7B": 14.8},
    implementation="janus.family:Janus",
)
