"""Families of published models that draw codes: what they are, their makers' settings, licences and checkpoints.

Settings are those that the makers' own code draws with, also where transformers has others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from polydraft.modalities.hub import Published


@dataclass(frozen=True)
class Family:
    """A family that draws codes. title: what people say; published: GB of its checkpoints on the hub.

    pipeline: what diffusers calls it, if it is published as one of its pipelines; target: the part that draws codes;
    preview: whether a smaller picture is drawn before the picture.
    """

    title: str
    summary: str
    licence: str
    defaults: dict[str, Any]
    published: dict[str, float] = field(default_factory=dict)
    pipeline: str = ""
    target: str = "."
    preview: bool = False


CHAMELEON_LICENCE = "Chameleon Research License (no commercial use); its copies on the hub say otherwise or nothing"
CODES = {  # by what `kind_of` says
    "janus": Family(
        "Janus and Janus-Pro", "draws free text, 384x384, from all codes as its makers do (transformers: the best 50)",
        "DeepSeek Model License (commercial use allowed, with use restrictions); code MIT",
        {"temperature": 1.0, "guidance_scale": 5.0},
        {"deepseek-community/Janus-Pro-1B": 4.2, "deepseek-community/Janus-Pro-7B": 14.8},
    ),
    "emu3": Family(
        "Emu3-Gen", "draws free text in multiples of 8 pixels, as its makers do, with the words they add to every "
        "caption", "Apache-2.0", {"temperature": 1.0, "top_k": 2048, "guidance_scale": 3.0},
        {"BAAI/Emu3-Gen-hf": 17.5},
    ),
    "imagegpt": Family(
        "ImageGPT", "draws 32x32 pixels without a prompt, from all colours as its makers do (transformers' example: "
        "the best 40)", "Apache-2.0", {"temperature": 1.0},
        {"openai/imagegpt-small": 0.3, "openai/imagegpt-medium": 1.8, "openai/imagegpt-large": 5.5},
    ),
    "glm_image": Family(
        "GLM-Image", "draws free text in sizes that are multiples of 32, codes first and pixels by diffusion",
        "MIT; its tokenizer of pictures (X-Omni) Apache-2.0",
        {"temperature": 0.9, "top_p": 0.75}, {"zai-org/GLM-Image": 35}, "GlmImagePipeline", "vision_language_encoder",
        preview=True,
    ),
    "llamagen_t2i": Family(
        "LlamaGen of captions", "draws free text, 512x512 or 256x256", "MIT",
        {"temperature": 1.0, "top_k": 1000, "guidance_scale": 7.5},
    ),
    "llamagen_c2i": Family(
        "LlamaGen of classes", "draws a class of ImageNet by its number", "MIT",
        {"temperature": 1.0, "top_k": 2000, "guidance_scale": 4.0},
    ),
    "anole": Family(
        "Anole", "draws free text, 512x512, and what is shown to it", CHAMELEON_LICENCE,
        {"temperature": 0.7, "top_p": 0.9, "guidance_scale": 3.0}, {"leloy/Anole-7b-v0.1-hf": 14.3},
    ),
    "lumina-mgpt": Family(
        "Lumina-mGPT", "draws free text in multiples of 32 pixels, as its makers' README does", CHAMELEON_LICENCE,
        {"temperature": 1.0, "top_k": 2000, "guidance_scale": 4.0}, {"Alpha-VLLM/Lumina-mGPT-7B-768": 14.1},
    ),
    "liquid": Family(
        "Liquid", "draws free text, 512x512, from codes alone (its makers: from words too)",
        "Gemma Terms of Use; its VQGAN Chameleon Research License (no commercial use); code MIT",
        {"temperature": 0.99, "top_k": 4096, "top_p": 0.96, "guidance_scale": 7.0}, {"Junfeng5/Liquid_V1_7B": 17.1},
    ),
}  # fmt: skip
PUBLISHED = {
    name: Published(family.title, size, family.licence)
    for family in CODES.values()
    for name, size in family.published.items()
}
