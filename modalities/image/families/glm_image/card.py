"""Card of GLM-Image."""

from __future__ import annotations

from polydraft.modalities.image.families.card import FamilyCard

GLM_IMAGE = FamilyCard(
    name="glm_image",
    title="GLM-Image",
    summary="generates from free text in sizes that are multiples of 32, codes first and pixels by diffusion",
    licence="MIT; its image tokenizer (X-Omni) Apache-2.0",
    defaults={"temperature": 0.9, "top_p": 0.75},
    checkpoints={"zai-org/GLM-Image": 35},
    implementation="glm_image.family:GlmImage",
    diffusers_pipeline="GlmImagePipeline",
    target_folder="vision_language_encoder",
    has_preview=True,
)
