"""Which family a model of pictures in Hugging Face form is of, told by its configuration, and the card it lacks.

Sampling defaults are those its makers publish, where their own code says other ones than transformers does; methods are
drafter-free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polydraft.core.errors import WeightsError
from polydraft.modalities.hub import PIPELINE, Published, said, stored
from polydraft.modalities.image.families.mar.config import MODEL_TYPE as MAR
from polydraft.modalities.image.families.mar.config import SCALES, SIZES, MARConfig
from polydraft.modalities.image.families.nextstep.config import AUTOENCODER, MODEL_TYPE, PICKLE, NextStepConfig


@dataclass(frozen=True)
class Family:
    """A family that draws codes. title: what people say; published: GB of its checkpoints on the hub.

    pipeline: what diffusers calls it, if it is published as one of its pipelines; target: the part that draws codes.
    """

    title: str
    summary: str
    licence: str
    defaults: dict[str, Any]
    published: dict[str, float] = field(default_factory=dict)
    pipeline: str = ""
    target: str = "."


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
# what `model_type` says, and what people say
MARKS = {MODEL_TYPE: "NextStep-1 and NextStep-1.1", MAR: "MAR as `polydraft convert mar` leaves it"}
MARKS |= {name: family.title for name, family in CODES.items()}
PUBLISHED = {
    name: Published(family.title, size, family.licence)
    for family in CODES.values()
    for name, size in family.published.items()
}
VQGAN = "leloy/Anole-7b-v0.1-vqvae-hf"  # of all Chameleons
LUMINA = {"mask_image_logits", "z_loss_weight"}  # settings that its makers' Chameleon has more than others
LIQUID = 256_000 + 8192  # Gemma's words and codes
WITH_VQGAN = ("anole", "lumina-mgpt", "liquid")
CODECS: dict[str, tuple[str, list[str]]] = {MODEL_TYPE: (AUTOENCODER, [PICKLE]), MAR: ("kl16", [])}
CODECS |= {name: (VQGAN, []) for name in WITH_VQGAN}
METHODS = {"1": "ar", "1.1": "jacobi"}  # no draft of release 1 is ever kept, since its last step draws nothing

# a token is spread widely around what is known of it, so a draft must take every step of its chain
FITTED = dict.fromkeys(("draft", "eagle", "early-exit"), {"looks": 0})


def manifest(folder: Path) -> dict[str, Any] | None:
    """What a card would say of the model in `folder`; None if it is of no family here.

    Raises UnsupportedModel or WeightsError for a NextStep that polydraft does not compute, or a MAR of no shape.
    """
    fields = said(folder / "config.json")
    kind = piped(folder) or kind_of(folder, fields)
    if kind == MAR:
        return mar(folder, fields)
    if kind in CODES:
        family = CODES[kind]
        if family.pipeline and not piped(folder):
            raise WeightsError(
                f"{folder} is the {family.target} of {family.title} alone, which makes no pixels; give the whole of "
                f"it, a folder with {PIPELINE}."
            )
        codec = {"codec": "." if holds_vqgan(folder) else "vqvae"} if kind in WITH_VQGAN else {}
        return codec | {
            "format": 1, "modality": "image", "family": kind, "drafters": {}, "licence": family.licence,
            "target": family.target,
            "defaults": {"method": "jacobi"} | family.defaults, "summary": f"{family.title}: {family.summary}",
        }  # fmt: skip
    if kind != MODEL_TYPE:
        return None
    release = NextStepConfig.read(fields).release
    return {
        "format": 1, "modality": "image", "tokens": "latents", "family": MODEL_TYPE, "drafters": {}, "codec": "vae",
        "defaults": {"method": METHODS[release], "temperature": 1.0, "guidance_scale": 7.5},
        "fitted": FITTED,
        "summary": f"NextStep-{release}: draws free text as latents, 512x512",
    }  # fmt: skip


def piped(folder: Path) -> str | None:
    """The family whose pipeline of diffusers lies in `folder`."""
    name = said(folder / PIPELINE).get("_class_name")
    return next((kind for kind, family in CODES.items() if name and family.pipeline == name), None)


def mar(folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """The card of a MAR; its makers draw in 64 sets where speed counts, in 256 where nothing else does."""
    try:
        config = MARConfig(**fields)
    except TypeError as error:
        file = folder / "config.json"
        raise WeightsError(f"{file} is no MAR's; convert it again with `polydraft convert mar`.") from error
    name = next((name for name, published in SIZES.items() if published == config), "MAR")
    return {
        "format": 1, "modality": "image", "tokens": "latents", "family": "mar", "drafters": {}, "codec": "vae",
        "defaults": {
            "method": "ar", "temperature": 1.0, "guidance_scale": SCALES.get(name, 1.0), "iterations": 64,
            "steps": 100,
        },
        "summary": f"{name}: draws ImageNet's classes as latents, a set at a time",
    }  # fmt: skip


def kind_of(folder: Path, fields: dict[str, Any]) -> str:
    """What `model_type` says; of Chameleons and Gemmas, which mostly do not draw, the one that does."""
    kind, beside = str(fields.get("model_type")), (folder / "vqvae").is_dir()
    if kind == "chameleon" and fields.keys() & LUMINA:
        return "lumina-mgpt"
    if kind == "chameleon" and (beside or holds_vqgan(folder)):  # others cannot make pictures of codes
        return "anole"
    if kind == "gemma" and (beside or fields.get("vocab_size") == LIQUID):
        return "liquid"
    return kind


def holds_vqgan(folder: Path) -> bool:
    """Whether the decoder of pictures is among a language model's weights."""
    return any(name.endswith("vqmodel.decoder.conv_in.weight") for name in stored(folder))
