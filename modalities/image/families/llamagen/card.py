"""Cards of LlamaGen: of captions, and of classes."""

from __future__ import annotations

from polydraft.modalities.image.families.card import FamilyCard

LLAMAGEN_T2I = FamilyCard(
    name="llamagen_t2i",
    title="LlamaGen of captions",
    summary="generates from free text, 512x512 or 256x256",
    licence="MIT",
    defaults={"temperature": 1.0, "top_k": 1000, "guidance_scale": 7.5},
    implementation="llamagen.family:CaptionConditionalLlamaGen",
)
LLAMAGEN_C2I = FamilyCard(
    name="llamagen_c2i",
    title="LlamaGen of classes",
    summary="generates a class of ImageNet by its number",
    licence="MIT",
    defaults={"temperature": 1.0, "top_k": 2000, "guidance_scale": 4.0},
    implementation="llamagen.family:ClassConditionalLlamaGen",
)
